use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    Acquire, Code, EnvironmentClient, Error, Result,
    stream::{AbortOnDrop, Pauses, passes},
    v1,
};

/// Time after which a lease that nobody renews is taken back, unless another one is asked for.
const TTL: Duration = Duration::from_secs(60);

/// A leased sandbox. It is renewed until it is released; dropping it releases it in the background.
pub struct Lease {
    environment: EnvironmentClient,
    acquired: v1::AcquireResponse,
    step: i64,
    held: bool,
    lost: Arc<Mutex<Option<Error>>>,
    _renewal: AbortOnDrop,
}

impl Lease {
    pub(crate) async fn acquire(environment: &EnvironmentClient, what: Acquire) -> Result<Self> {
        let lease_id = new_id("lease");
        // Always asked for: when to renew is then told by this machine's clock alone.
        let ttl = what.ttl.unwrap_or(TTL);
        let request = v1::AcquireRequest {
            lease_id: lease_id.clone(),
            r#type: what.kind,
            wait: what.wait.map(crate::duration),
            ttl: Some(crate::duration(ttl)),
            holder: what.holder,
        };
        // Given up while it waits, the lease may come nevertheless: it is given back then.
        let guard = Unclaimed(Some((environment.clone(), lease_id.clone())));
        let connection = environment.connection();
        let request = connection.patient(request, what.wait.unwrap_or_default() + Duration::from_secs(60))?;
        let answer = environment.raw().acquire(request).await;
        let acquired = answer.map_err(|s| connection.error(s))?.into_inner();
        guard.claimed();
        let lost = Arc::new(Mutex::new(None));
        let renewal = tokio::spawn(renew(environment.clone(), lease_id, ttl, Arc::clone(&lost)));
        Ok(Self {
            environment: environment.clone(),
            acquired,
            step: 0,
            held: true,
            lost,
            _renewal: AbortOnDrop(renewal),
        })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.acquired.lease_id
    }

    /// What was leased: schemas of actions and observations, the sandbox.
    pub fn acquired(&self) -> &v1::AcquireResponse {
        &self.acquired
    }

    /// Why it could not be renewed; `None` while all is well.
    pub fn lost(&self) -> Option<Error> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the sandbox into the initial state of a task; empty for none.
    pub async fn reset(&mut self, task_id: impl Into<String>, seed: Option<i64>) -> Result<v1::ResetResponse> {
        let connection = self.environment.connection();
        let request = v1::ResetRequest { lease_id: self.id().to_owned(), task_id: task_id.into(), seed };
        let request = connection.patient(request, Duration::from_secs(120))?;
        let answer = self.environment.raw().reset(request).await;
        self.step = 0;
        Ok(answer.map_err(|s| connection.error(s))?.into_inner())
    }

    /// Does an action: `{"name": ..., "arguments": {...}}`. A call that failed on its way may be repeated by
    /// [`repeat_step`](Self::repeat_step): it is not done twice.
    pub async fn step(&mut self, action_json: impl Into<String>) -> Result<v1::StepResponse> {
        self.step += 1;
        let answer = self.repeat_step(action_json).await;
        if matches!(&answer, Err(error) if error.code() == Code::InvalidArgument || error.code() == Code::FailedPrecondition)
        {
            self.step -= 1; // it was not taken
        }
        answer
    }

    /// Asks again for the answer to the last step, with the same action.
    pub async fn repeat_step(&self, action_json: impl Into<String>) -> Result<v1::StepResponse> {
        let connection = self.environment.connection();
        let request = v1::StepRequest {
            lease_id: self.id().to_owned(),
            step: self.step,
            action_json: action_json.into(),
            timeout: None,
        };
        let request = connection.patient(request, Duration::from_secs(120))?;
        let answer = self.environment.raw().step(request).await;
        Ok(answer.map_err(|s| connection.error(s))?.into_inner())
    }

    /// Runs the task's check: the outcome from 0 to 1, and what the check said.
    pub async fn evaluate(&self) -> Result<v1::EvaluateResponse> {
        let connection = self.environment.connection();
        let request = v1::EvaluateRequest { lease_id: self.id().to_owned() };
        let request = connection.patient(request, Duration::from_secs(120))?;
        let answer = self.environment.raw().evaluate(request).await;
        Ok(answer.map_err(|s| connection.error(s))?.into_inner())
    }

    /// Gives it back.
    pub async fn release(mut self) -> Result<()> {
        self.held = false;
        release(&self.environment, self.id().to_owned()).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held {
            release_later(self.environment.clone(), self.id().to_owned());
        }
    }
}

/// A lease that was asked for and is not there yet.
struct Unclaimed(Option<(EnvironmentClient, String)>);

impl Unclaimed {
    fn claimed(mut self) {
        self.0 = None;
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some((environment, id)) = self.0.take() {
            release_later(environment, id);
        }
    }
}

async fn release(environment: &EnvironmentClient, lease_id: String) -> Result<()> {
    let connection = environment.connection();
    let request = connection.request(v1::ReleaseRequest { lease_id })?;
    let answer = environment.raw().release(request).await;
    answer.map_err(|s| connection.error(s))?;
    Ok(())
}

fn release_later(environment: EnvironmentClient, lease_id: String) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { release(&environment, lease_id).await });
    }
}

/// Renews when a third of its time is over, so that two renewals may fail.
async fn renew(environment: EnvironmentClient, lease_id: String, ttl: Duration, lost: Arc<Mutex<Option<Error>>>) {
    let mut pauses = Pauses::default();
    let connection = environment.connection().clone();
    let mut wait = ttl / 3;
    loop {
        tokio::time::sleep(wait.max(Duration::from_millis(50))).await;
        let request = v1::RenewRequest { lease_id: lease_id.clone() };
        let answer = match connection.request(request) {
            Ok(request) => environment.raw().renew(request).await.map_err(|s| connection.error(s)),
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => {
                wait = ttl / 3;
                pauses = Pauses::default();
                *lost.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            Err(error) => {
                let again = passes(&error);
                wait = pauses.after(Some(&error));
                *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                if !again {
                    return;
                }
            }
        }
    }
}

/// An id that nobody else makes: the hashers are seeded at random.
fn new_id(kind: &str) -> String {
    use std::{
        collections::hash_map::RandomState,
        hash::{BuildHasher, Hasher},
    };
    let (a, b) = (RandomState::new().build_hasher().finish(), RandomState::new().build_hasher().finish());
    format!("{kind}_{a:016x}{b:016x}")
}
