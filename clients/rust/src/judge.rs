use crate::{
    Answers, Component, ComponentClient, Connection, Result, Role, Transport, Watch,
    v1::{self, judge_service_client::JudgeServiceClient},
};

/// The judge: it votes on transitions.
#[derive(Clone, Debug)]
pub struct JudgeClient(Connection);

impl Component for JudgeClient {
    const ROLE: Role = Role::Judge;
}

impl JudgeClient {
    /// Judges one transition now, without keeping it; its turn needs messages and response only.
    pub async fn judge(&self, transition: v1::Transition) -> Result<v1::Judgement> {
        let request = self.0.request(v1::JudgeRequest { transition: Some(transition) })?;
        let answer = self.raw().judge(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner().judgement.unwrap_or_default())
    }

    /// Judges what came after an answer: `messages` were answered with `response`, then came `next`.
    pub async fn judge_reply(
        &self,
        messages: Vec<v1::ChatMessage>,
        response: v1::ChatMessage,
        next: Vec<v1::ChatMessage>,
    ) -> Result<v1::Judgement> {
        self.judge(v1::Transition {
            turn: Some(v1::Turn {
                turn_id: "asked-directly".into(),
                messages,
                response: Some(response),
                ..Default::default()
            }),
            next_state: Some(v1::NextState {
                kind: v1::NextStateKind::Continued.into(),
                messages: next,
                ..Default::default()
            }),
            ..Default::default()
        })
        .await
    }

    /// Each judgement as it is made, of one session or of all.
    pub fn watch_judgements(&self, session_id: Option<&str>) -> Watch<v1::WatchJudgementsResponse> {
        let (this, session_id) = (self.clone(), session_id.unwrap_or_default().to_owned());
        Watch::new(&self.0, move || {
            let (this, session_id) = (this.clone(), session_id.clone());
            async move {
                let request = v1::WatchJudgementsRequest { session_id };
                let answers = this.raw().watch_judgements(request).await.map_err(|s| this.0.error(s))?;
                Ok(Answers::new(&this.0, answers.into_inner(), None))
            }
        })
    }

    /// The generated stub, for what this client does not wrap.
    pub fn raw(&self) -> JudgeServiceClient<Transport> {
        crate::stub!(JudgeServiceClient, self.0)
    }

    /// Status and figures.
    pub fn component(&self) -> ComponentClient {
        self.0.clone().into()
    }
}

crate::client!(JudgeClient, "the judge");
