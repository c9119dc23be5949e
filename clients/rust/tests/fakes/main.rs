//! The client against servers in this process that do right, and wrong, on purpose.
mod calls;
mod connections;
mod delivery;
mod lease;
mod servers;
