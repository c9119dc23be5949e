/** A trainer for policies that are APIs: what users ask for becomes a versioned playbook. */
package org.openclaw.rl.trainer;
