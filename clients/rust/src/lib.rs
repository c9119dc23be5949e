#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod component;
mod connect;
mod connection;
pub mod delivery;
mod environment;
mod error;
mod judge;
mod lease;
mod mesh;
mod policy;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod trainer;
mod wire;

/// The contract: every message and stub of `protos/openclaw_rl/v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod v1 {
    include!("gen/openclaw_rl.v1.rs");
}

pub use component::{Check, ComponentClient};
pub use connect::{Builder, Component, Role};
pub use connection::{Bearer, Connection, Transport};
pub use environment::{Acquire, Conversation, EnvironmentClient};
pub use error::{DOMAIN, Error, Result, Violation};
pub use judge::JudgeClient;
pub use lease::Lease;
pub use mesh::{COMPONENT_KEY, Identified, MESH_KEY, MESH_VARIABLE, Mesh};
pub use policy::{
    Chat, ChatAnswer, ChatEvent, ChatStream, GenerateEvent, PolicyClient, assistant, system, tool_result, user,
};
pub use stream::{Answers, Dialogue, Watch};
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use tonic::Code;
pub use trainer::TrainerClient;

/// Version of the contract that this crate was generated from, MAJOR.MINOR as in `protos/VERSION`.
pub const CONTRACT_VERSION: &str = "1.1";

/// The contract's descriptors (a serialized `google.protobuf.FileDescriptorSet`), for server reflection.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!("gen/descriptor.bin");

/// A generated stub over a connection, with its message limits.
macro_rules! stub {
    ($stub:ident, $connection:expr) => {
        $stub::new($connection.transport())
            .max_decoding_message_size($connection.message_limit())
            .max_encoding_message_size($connection.message_limit())
    };
}
pub(crate) use stub;

/// What all clients have alike.
macro_rules! client {
    ($client:ident, $what:literal) => {
        impl $client {
            #[doc = concat!("Options of a connection to ", $what, ".")]
            pub fn builder() -> crate::Builder<Self> {
                crate::Builder::default()
            }

            #[doc = concat!("Connects to ", $what, " at HOST:PORT in plain text; `builder` has more options.")]
            pub async fn connect(address: impl Into<String>) -> crate::Result<Self> {
                Self::builder().address(address).connect().await
            }

            /// The connection.
            pub fn connection(&self) -> &crate::Connection {
                &self.0
            }
        }

        impl From<crate::Connection> for $client {
            fn from(connection: crate::Connection) -> Self {
                Self(connection)
            }
        }
    };
}
pub(crate) use client;

pub(crate) fn duration(duration: std::time::Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or_default()
}
