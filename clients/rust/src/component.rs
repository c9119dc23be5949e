use std::time::Duration;

use crate::{
    Answers, CONTRACT_VERSION, Code, Component, Connection, Error, Result, Role, Transport, Watch,
    v1::{self, component_service_client::ComponentServiceClient},
};

/// What every component has: status and figures.
#[derive(Clone, Debug)]
pub struct ComponentClient(Connection);

impl Component for ComponentClient {
    const ROLE: Role = Role::Any;
}

/// What [`ComponentClient::check`] found; it is fit for use.
#[derive(Clone, Debug)]
pub struct Check {
    /// What the component tells of itself.
    pub status: v1::ComponentStatus,
    /// The contract that it was built with, MAJOR.MINOR.
    pub contract_version: String,
    /// What an operator should know, a sentence each; empty when all is well.
    pub warnings: Vec<String>,
}

impl ComponentClient {
    /// What the component tells of itself.
    pub async fn status(&self) -> Result<v1::ComponentStatus> {
        let request = self.0.request(v1::GetStatusRequest {})?;
        let answer = self.raw().get_status(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner().status.unwrap_or_default())
    }

    /// Whether this client can work with the component that is there.
    ///
    /// # Errors
    /// `CONTRACT_MISMATCH`: it has another major version of the contract. `WRONG_COMPONENT`: another component serves
    /// this address.
    pub async fn check(&self) -> Result<Check> {
        let status = self.status().await?;
        let (wanted, address) = (self.0.role(), self.0.address());
        if wanted != Role::Any && status.name != wanted.name() {
            let text = format!("{address} serves {:?}, not {}: check the address", status.name, wanted.name());
            return Err(Error::new(Code::FailedPrecondition, "WRONG_COMPONENT", text)
                .with_metadata("expected", wanted.name())
                .with_metadata("served", status.name));
        }
        let theirs = if status.contract_version.is_empty() { "1.0" } else { &status.contract_version }.to_owned();
        let (ours, there) = (parts(CONTRACT_VERSION), parts(&theirs));
        if ours.map(|v| v.0) != there.map(|v| v.0) {
            let text = format!(
                "{address} has version {theirs} of the contract, this client {CONTRACT_VERSION}: take a client of the \
                 component's major version"
            );
            return Err(Error::new(Code::FailedPrecondition, "CONTRACT_MISMATCH", text)
                .with_metadata("client", CONTRACT_VERSION)
                .with_metadata("server", theirs));
        }
        let mut warnings = Vec::new();
        if there < ours {
            warnings.push(format!(
                "{address} has version {theirs} of the contract, this client {CONTRACT_VERSION}: what was added since \
                 does not work there"
            ));
        }
        warnings.extend(status.alarms.iter().map(|alarm| format!("{}: {}", alarm.name, alarm.message)));
        Ok(Check { status, contract_version: theirs, warnings })
    }

    /// Status and figures again and again; every second unless `interval` says otherwise (0.1 s to 1 h).
    pub fn watch_stats(&self, interval: Option<Duration>) -> Watch<v1::WatchStatsResponse> {
        let this = self.clone();
        Watch::new(&self.0, move || {
            let this = this.clone();
            async move {
                let request = v1::WatchStatsRequest { interval: interval.map(crate::duration) };
                let answers = this.raw().watch_stats(request).await.map_err(|s| this.0.error(s))?;
                Ok(Answers::new(&this.0, answers.into_inner(), None))
            }
        })
    }

    /// Lets the component end its running work and stop.
    pub async fn drain(&self, grace: Option<Duration>) -> Result<()> {
        let request = v1::DrainRequest { grace: grace.map(crate::duration) };
        let request = self.0.patient(request, grace.unwrap_or(Duration::from_secs(30)))?;
        self.raw().drain(request).await.map_err(|s| self.0.error(s))?;
        Ok(())
    }

    /// The generated stub, for `forget`, `read_logs`, `list_spans`.
    pub fn raw(&self) -> ComponentServiceClient<Transport> {
        crate::stub!(ComponentServiceClient, self.0)
    }
}

crate::client!(ComponentClient, "any component");

fn parts(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
