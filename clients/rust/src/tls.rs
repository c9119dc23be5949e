use std::fmt;

use crate::{Error, Result};

/// How a connection is encrypted, and who this side is.
#[derive(Clone)]
pub struct Tls {
    pub(crate) authority: Vec<u8>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) server_name: Option<String>,
}

impl Tls {
    /// Trusts the CA (PEM of the mesh's `ca.crt`). The server is expected under the name of its host.
    pub fn new(authority: impl Into<Vec<u8>>) -> Self {
        Self { authority: authority.into(), identity: None, server_name: None }
    }

    /// Shows a certificate (PEM). The server is then expected under the mesh's own name of its role.
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// The name that the server's certificate must have, in place of the usual one.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads `ca.crt`, `ROLE.crt` and `ROLE.key` of a folder, such as `certs/` of the mesh's home with role `operator`.
    ///
    /// # Errors
    /// A file can't be read; the text names it.
    pub fn from_folder(folder: impl AsRef<std::path::Path>, role: &str) -> Result<Self> {
        let read = |name: String| {
            let path = folder.as_ref().join(name);
            std::fs::read(&path)
                .map_err(|error| Error::invalid("tls", format!("{} can't be read: {error}", path.display())))
        };
        Ok(Self::new(read("ca.crt".into())?).identity(read(format!("{role}.crt"))?, read(format!("{role}.key"))?))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}
