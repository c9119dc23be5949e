//! ComponentService: what the server tells of itself, its end, and forgetting.
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_util::stream;
use openclaw_rl_client::{
    CONTRACT_VERSION, Error,
    v1::{self, ComponentState},
};
use tokio::sync::watch;
use tonic::{Request, Response, Status, codegen::BoxStream};

use crate::{clock, guard::Phase, membership::Membership, store::Store, turns::Desk};

/// Seconds for which messages wait before that is an alarm.
const WAITING: f64 = 30.0;

/// What the server tells of itself.
pub struct Board {
    pub desk: Arc<Desk>,
    pub store: Arc<Store>,
    pub membership: Arc<Membership>,
    pub address: String,
    pub http_address: String,
    pub started_at: prost_types::Timestamp,
    pub secure: bool,
    pub phase: watch::Sender<Phase>,
    /// Time that running responses have once the server drains.
    pub grace: Mutex<Duration>,
    /// Counts of requests at moments of the last 10 s, for their rate.
    pub counted: Mutex<VecDeque<(Instant, i64)>>,
}

impl Board {
    /// Takes no new work from now on: first the desk, so that who sees its streams end is not let in again.
    pub fn close(&self) {
        self.desk.closed.store(true, Ordering::Relaxed);
        self.phase.send_if_modified(|phase| std::mem::replace(phase, Phase::Draining.max(*phase)) == Phase::Serving);
    }

    pub fn status(&self) -> v1::ComponentStatus {
        let desk = &self.desk;
        let active = desk.versions.active();
        let delivery = desk.delivery().stats();
        let mut counters: HashMap<String, i64> = desk.counters().into_iter().collect();
        counters.insert("api_retries".into(), desk.upstream.retries() as i64);
        let oldest = self.store.oldest().filter(|_| delivery.pending > 0);
        let (refused, remark) = self.membership.refusals();
        let gauges = [
            ("qps", self.rate(counters.get("requests").copied().unwrap_or(0))),
            ("running", desk.running.load(Ordering::Relaxed) as f64),
            ("tokens_per_s", 0.0),
            ("version", active.version as f64),
            ("playbook_entries", active.entries as f64),
            ("foreign_calls_refused", refused as f64),
        ];
        let alarms = self.alarms(&delivery, oldest);
        let state = if *self.phase.borrow() != Phase::Serving {
            ComponentState::Draining
        } else if alarms.is_empty() {
            ComponentState::Running
        } else {
            ComponentState::Degraded
        };
        let details = alarms.iter().map(|alarm| alarm.message.clone()).chain([desk.versions.pin(), remark]);
        v1::ComponentStatus {
            name: "policy_server".into(),
            state: state.into(),
            detail: details.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; "),
            pid: std::process::id().into(),
            address: self.address.clone(),
            http_address: self.http_address.clone(),
            package_version: env!("CARGO_PKG_VERSION").into(),
            contract_version: CONTRACT_VERSION.into(),
            started_at: Some(self.started_at),
            policy_version: Some(active.version),
            counters,
            gauges: gauges.map(|(name, value)| (name.to_owned(), value)).into(),
            outboxes: vec![v1::OutboxStats {
                name: "turns".into(),
                pending: delivery.pending as i64,
                pending_bytes: delivery.pending_bytes as i64,
                oldest_age: oldest.and_then(|age| Duration::try_from_secs_f64(age).ok()?.try_into().ok()),
                connected: delivery.connected,
                delivered: delivery.delivered as i64,
                rejected: delivery.rejected as i64,
                last_error: delivery.last_error,
            }],
            alarms,
            host: std::fs::read_to_string("/etc/hostname").unwrap_or_default().trim().into(),
            secure: self.secure,
            mesh_id: self.membership.id().into(),
            ..Default::default()
        }
    }

    fn alarms(&self, delivery: &openclaw_rl_client::delivery::Stats, oldest: Option<f64>) -> Vec<v1::Alarm> {
        let mut raised: Vec<(&str, String)> = Vec::new();
        if let Some(age) = oldest.filter(|age| *age > WAITING) {
            let why = if delivery.last_error.is_empty() { "it does not keep up" } else { &delivery.last_error };
            let text = format!(
                "{} turns wait on disk for env_server, the oldest for {age:.0} s: {why}; nothing is lost, start or \
                 repair env_server and they go on by themselves",
                delivery.pending
            );
            raised.push(("turns_waiting", text));
        }
        if self.desk.held() > 0 {
            let text = format!("{} events wait in memory, since the disk can't be written", self.desk.held());
            raised.push(("turns_not_written", text));
        }
        raised.extend(self.membership.trouble().map(|text| ("wrong_mesh", text)));
        let api = self.desk.upstream.problem();
        raised.extend(Some(("api_failing", api)).filter(|(_, text)| !text.is_empty()));
        raised.extend(self.desk.versions.problems().into_iter().map(|text| ("versions_damaged", text)));
        let alarm =
            |(name, message): (&str, String)| v1::Alarm { name: name.into(), message, since: Some(self.started_at) };
        raised.into_iter().map(alarm).collect()
    }

    /// Requests per second, of the last ten.
    fn rate(&self, requests: i64) -> f64 {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        counted.push_back((now, requests));
        while counted.len() > 2 && now - counted[0].0 > Duration::from_secs(10) {
            counted.pop_front();
        }
        let (then, before) = counted[0];
        (requests - before) as f64 / (now - then).as_secs_f64().max(1.0)
    }

    /// Removes a session from all that is kept here.
    fn forget(&self, request: v1::ForgetRequest) -> Result<v1::ForgetResponse, Error> {
        if request.session_id.is_empty() {
            return Err(Error::invalid("session_id", "'' is not allowed: must be the session to be forgotten"));
        }
        let unwritten = |error| {
            let text = format!("it can't be written down, call again: {error}");
            Error::unavailable(text, Duration::from_secs(1))
        };
        let before = request.before.map_or_else(clock::seconds, |at| at.seconds as f64 + f64::from(at.nanos) / 1e9);
        let mut turns: BTreeSet<String> = request.turn_ids.into_iter().collect();
        let known = turns.len();
        self.desk.retry(); // what waits in memory is forgotten as well
        let conversations = self.store.forget(&request.session_id, &mut turns, before).map_err(unwritten)?;
        let mut removed = HashMap::from([
            ("turns".to_owned(), (turns.len() - known) as i64),
            ("conversations".to_owned(), conversations as i64),
        ]);
        let mut message = String::new();
        if !request.versions.is_empty() {
            let count = self.desk.versions.withdraw(&request.versions).map_err(unwritten)?;
            removed.insert("versions".into(), count as i64);
            let active = self.desk.versions.active().version;
            if request.versions.contains(&active) {
                message = format!("version {active} answers, so it is not deleted; activate another one and repeat");
            }
        }
        Ok(v1::ForgetResponse { turn_ids: turns.into_iter().collect(), removed, message, ..Default::default() })
    }
}

pub struct Component(pub Arc<Board>);

#[tonic::async_trait]
impl v1::component_service_server::ComponentService for Component {
    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(v1::GetStatusResponse { status: Some(self.0.status()) }))
    }

    async fn watch_stats(
        &self,
        request: Request<v1::WatchStatsRequest>,
    ) -> Result<Response<BoxStream<v1::WatchStatsResponse>>, Status> {
        let wanted = request.into_inner().interval;
        let seconds = wanted.map_or(1.0, |wanted| wanted.seconds as f64 + f64::from(wanted.nanos) / 1e9);
        if !(0.1..=3600.0).contains(&seconds) {
            let problem = format!("{seconds} s is not allowed: must be from 0.1 s to 1 h");
            return Err(Error::invalid("interval", problem).into());
        }
        let ticks = tokio::time::interval(Duration::from_secs_f64(seconds));
        let answers = stream::unfold((ticks, Arc::clone(&self.0)), async |(mut ticks, board)| {
            ticks.tick().await;
            let answer = v1::WatchStatsResponse { status: Some(board.status()), at: Some(clock::now()) };
            Some((Ok(answer), (ticks, board)))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        let grace = request.into_inner().grace.unwrap_or(prost_types::Duration { seconds: 30, nanos: 0 });
        let allowed = Duration::try_from(grace).ok().filter(|grace| *grace <= Duration::from_secs(3600));
        let Some(allowed) = allowed else {
            let problem = format!("{} s is not allowed: must be from 0 s to 1 h", grace.seconds);
            return Err(Error::invalid("grace", problem).into());
        };
        *self.0.grace.lock().unwrap_or_else(PoisonError::into_inner) = allowed;
        self.0.close();
        Ok(Response::new(v1::DrainResponse {}))
    }

    async fn forget(&self, request: Request<v1::ForgetRequest>) -> Result<Response<v1::ForgetResponse>, Status> {
        Ok(Response::new(self.0.forget(request.into_inner())?))
    }
}
