use crate::{
    Answers, Component, ComponentClient, Connection, Result, Role, Transport, Watch,
    v1::{self, trainer_service_client::TrainerServiceClient},
};

/// The trainer: it learns from samples and publishes versions.
#[derive(Clone, Debug)]
pub struct TrainerClient(Connection);

impl Component for TrainerClient {
    const ROLE: Role = Role::Trainer;
}

impl TrainerClient {
    /// The newest versions, ascending, with what is known of their delivery.
    pub async fn versions(&self) -> Result<Vec<v1::PolicyVersion>> {
        let request = self.0.request(v1::ListVersionsRequest { before: None })?;
        let answer = self.raw().list_versions(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner().versions)
    }

    /// One version.
    pub async fn version(&self, version: i64) -> Result<v1::PolicyVersion> {
        let request = self.0.request(v1::GetVersionRequest { version })?;
        let answer = self.raw().get_version(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner().version.unwrap_or_default())
    }

    /// Trains now on what there is; tells with how many samples.
    pub async fn train_now(&self) -> Result<v1::TrainNowResponse> {
        let request = self.0.request(v1::TrainNowRequest {})?;
        let answer = self.raw().train_now(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner())
    }

    /// Each training step, publication and skip as it happens.
    pub fn watch_training(&self) -> Watch<v1::WatchTrainingResponse> {
        let this = self.clone();
        Watch::new(&self.0, move || {
            let this = this.clone();
            async move {
                let answers = this.raw().watch_training(v1::WatchTrainingRequest {}).await;
                let answers = answers.map_err(|s| this.0.error(s))?.into_inner();
                Ok(Answers::new(&this.0, answers, None))
            }
        })
    }

    /// The generated stub, for what this client does not wrap.
    pub fn raw(&self) -> TrainerServiceClient<Transport> {
        crate::stub!(TrainerServiceClient, self.0)
    }

    /// Status and figures.
    pub fn component(&self) -> ComponentClient {
        self.0.clone().into()
    }
}

crate::client!(TrainerClient, "the trainer");
