"""The weight stream: the kit is the trainer. Its versions change next to nothing, have the algorithm "conformance", and
behind each check the version that was active before the kit came is active again.

The order counts: what is refused comes before what is activated, since an activation ends a server's alarm about
versions that were refused.
"""

from openclaw_rl.conformance import weights_cycle  # noqa: F401, I001
from openclaw_rl.conformance import weights_refusals  # noqa: F401
from openclaw_rl.conformance import weights_resume  # noqa: F401
from openclaw_rl.conformance import weights_encodings  # noqa: F401
from openclaw_rl.conformance import weights_control  # noqa: F401
