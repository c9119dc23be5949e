//! The server as a process, between an API and an environment server in this one.
mod chat;
mod ends;
mod fakes;
mod http;
mod meshes;
mod secure;
mod weights;
