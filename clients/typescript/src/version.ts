/** Version of the contract that this package was generated from (protos/VERSION), MAJOR.MINOR. */
export const CONTRACT_VERSION = "1.1";

/** Longest message in either direction, in bytes: what every component of a mesh takes. */
export const MAX_MESSAGE_BYTES = 16 * 1024 * 1024;
