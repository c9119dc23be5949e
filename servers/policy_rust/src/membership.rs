//! The mesh that this server belongs to, and the refusal of those of another one.
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderValue};
use openclaw_rl_client::{Code, Error, MESH_KEY, MESH_VARIABLE, Mesh, Result};

/// How long a foreign neighbour is an alarm, and a foreign caller told of; both try again every few seconds.
const REMEMBERED: Duration = Duration::from_secs(60);
const NAME: &str = "policy_server";

pub struct Membership {
    own: Mesh,
    headers: Vec<(&'static str, HeaderValue)>,
    met: Mutex<Option<(String, Instant)>>,
    refused: Mutex<Refused>,
}

/// Calls of other meshes: how many were refused, the last of them, and when one was last logged.
#[derive(Default)]
struct Refused {
    count: u64,
    last: Option<(String, Instant)>,
    logged: Option<Instant>,
}

impl Membership {
    /// Of a server in a mesh; an empty id is none.
    pub fn new(id: String) -> Result<Self> {
        let component = if id.is_empty() { String::new() } else { NAME.into() };
        let own = Mesh { id, component };
        let headers = own.headers()?;
        Ok(Self { own, headers, met: Mutex::default(), refused: Mutex::default() })
    }

    pub fn id(&self) -> &str {
        &self.own.id
    }

    /// Tells who answers.
    pub fn tell(&self, headers: &mut HeaderMap) {
        for (key, value) in &self.headers {
            headers.insert(*key, value.clone());
        }
    }

    /// Refuses a caller of another mesh, and a weight stream that names none where no certificate does.
    pub fn admit(&self, headers: &HeaderMap, path: &str, certified: bool) -> Result<()> {
        if path.starts_with("/grpc.") {
            return Ok(());
        }
        let call = path.rsplit('/').next().unwrap_or_default();
        let only = match call {
            "SyncWeights" => Some("trainer"),
            "FetchWeights" => Some(NAME),
            _ => None,
        };
        let (caller, own) = (Mesh::of(headers), &self.own.id);
        if own.is_empty() {
            return if only.is_none() || certified {
                Ok(())
            } else {
                Err(self.wrong(
                    &caller,
                    format!(
                        "this policy server was given no mesh, so {call} is refused: start it with --mesh or the \
                         variable {MESH_VARIABLE} (`openclaw-rl mesh id` prints the id)"
                    ),
                ))
            };
        }
        if !caller.id.is_empty() && caller.id != *own {
            let who = if caller.component.is_empty() { "a client" } else { &caller.component };
            let who = format!("{who} of the mesh {}", caller.id);
            self.refuse(format!(
                "{who} calls here and is refused: correct the address of {NAME} in its configuration, or stop it"
            ));
            let text = format!(
                "{who} calls {NAME} of the mesh {own}: correct its address of {NAME}; `openclaw-rl status` tells the \
                 addresses of a mesh. Nothing was taken"
            );
            return Err(self.wrong(&caller, text));
        }
        let Some(only) = only else { return Ok(()) };
        if caller.id.is_empty() && !certified {
            let text = format!(
                "{call} is for components of the mesh {own}, and the caller names none: send the metadata \
                 {MESH_KEY}: {own} (grpcurl -H), or set {MESH_VARIABLE}"
            );
            return Err(self.wrong(&caller, text));
        }
        if caller.component.is_empty() || caller.component == only {
            return Ok(());
        }
        let text = format!("{call} is for {only}; the caller says it is {}", caller.component);
        Err(Error::new(Code::PermissionDenied, "WRONG_ROLE", text).with_metadata("role", caller.component))
    }

    fn wrong(&self, caller: &Mesh, text: String) -> Error {
        Error::new(Code::FailedPrecondition, "WRONG_MESH", text)
            .with_metadata("expected", self.own.id.clone())
            .with_metadata("found", caller.id.clone())
    }

    /// Takes in what ended a stream of ours.
    pub fn note(&self, error: &Error) {
        if error.reason() == "WRONG_MESH" {
            self.meet(error.to_string());
        }
    }

    /// How many calls of other meshes were refused, and a remark about those of the last minute. It is no alarm: nothing
    /// is wrong here.
    pub fn refusals(&self) -> (u64, String) {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let last = refused.last.as_ref().filter(|(_, at)| at.elapsed() < REMEMBERED);
        (refused.count, last.map(|(what, _)| what.clone()).unwrap_or_default())
    }

    fn refuse(&self, what: String) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.count += 1;
        if refused.logged.is_none_or(|at| at.elapsed() >= REMEMBERED) {
            refused.logged = Some(Instant::now());
            log!("{what} ({} calls of other meshes refused)", refused.count);
        }
        refused.last = Some((what, Instant::now()));
    }

    fn meet(&self, what: String) {
        *self.met.lock().unwrap_or_else(PoisonError::into_inner) = Some((what, Instant::now()));
    }

    /// The alarm `wrong_mesh`; `None` when there is none.
    pub fn trouble(&self) -> Option<String> {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.as_ref().filter(|(_, at)| at.elapsed() < REMEMBERED).map(|(what, _)| what.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: &str = "/openclaw_rl.v1.PolicyService/SyncWeights";

    fn from(id: &str, component: &str) -> HeaderMap {
        let mesh = Mesh { id: id.into(), component: component.into() };
        mesh.headers().unwrap().into_iter().map(|(key, value)| (key.parse().unwrap(), value)).collect()
    }

    #[test]
    fn another_mesh_is_refused() {
        let ours = Membership::new("ours".into()).unwrap();
        let reason = |headers: &HeaderMap, path: &str| {
            ours.admit(headers, path, false).err().map(|error| error.reason().to_owned()).unwrap_or_default()
        };
        assert_eq!(reason(&from("ours", "trainer"), SYNC), "");
        assert_eq!(reason(&from("ours", "prm_judge"), SYNC), "WRONG_ROLE");
        assert_eq!(reason(&HeaderMap::new(), SYNC), "WRONG_MESH");
        assert_eq!(reason(&HeaderMap::new(), "/openclaw_rl.v1.PolicyService/Chat"), "");
        assert_eq!(ours.refusals(), (0, String::new()));
        assert_eq!(reason(&from("theirs", ""), "/openclaw_rl.v1.PolicyService/Chat"), "WRONG_MESH");
        assert_eq!(reason(&from("theirs", ""), "/grpc.health.v1.Health/Check"), "");
        let (count, remark) = ours.refusals();
        assert!(count == 1 && remark.contains("theirs") && ours.trouble().is_none(), "{remark}");
        assert!(ours.admit(&HeaderMap::new(), SYNC, true).is_ok());
    }

    #[test]
    fn without_a_mesh_no_weights_are_taken() {
        let none = Membership::new(String::new()).unwrap();
        let error = none.admit(&from("ours", "trainer"), SYNC, false).unwrap_err();
        assert!(error.message().contains("--mesh"), "{error}");
        assert!(none.admit(&HeaderMap::new(), "/openclaw_rl.v1.PolicyService/Chat", false).is_ok());
    }
}
