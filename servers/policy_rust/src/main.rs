//! A policy server of an OpenClaw-RL mesh in front of any OpenAI-compatible API; see README.md.
/// Tells the operator something on stderr. Unlike `eprintln!` it lives on when that can't be written, such as a log on a
/// full disk.
macro_rules! log {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod chat;
mod clock;
mod component;
mod fields;
mod guard;
mod http;
mod listen;
mod membership;
mod offers;
mod openai;
mod playbook;
mod receiver;
mod response;
mod rpc;
mod sessions;
mod store;
mod turns;
mod upstream;
mod versions;
mod web_pages;

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use axum::serve::ListenerExt as _;
use clap::Parser;
use openclaw_rl_client::{
    DESCRIPTOR_SET, EnvironmentClient, MESH_VARIABLE, Role, Tls,
    delivery::{Delivery, Event},
    v1::{component_service_server::ComponentServiceServer, policy_service_server::PolicyServiceServer},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{broadcast, watch},
};
use tonic::{
    service::Routes,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use crate::{
    component::{Board, Component},
    guard::{Guard, Phase},
    membership::Membership,
    receiver::Receiver,
    rpc::Policy,
    store::Store,
    turns::Desk,
    upstream::Upstream,
    versions::Versions,
};

/// Bytes of the largest message.
const MAX_MESSAGE: usize = 16 << 20;
const SERVICES: [&str; 2] = ["openclaw_rl.v1.PolicyService", "openclaw_rl.v1.ComponentService"];

/// A policy server of an OpenClaw-RL mesh in front of any OpenAI-compatible API.
///
/// What the mesh learns becomes part of the system prompt (a playbook), which the trainer sends as it sends weights. The
/// API's key comes from the variable OPENAI_API_KEY.
#[derive(Parser)]
#[command(
    name = "openclaw-rl-policy",
    version,
    after_help = "Example:\n  OPENAI_API_KEY=... openclaw-rl-policy --data ~/policy --environment 127.0.0.1:50052 \\\n    \
                  --mesh $(openclaw-rl mesh id) --upstream https://open.bigmodel.cn/api/paas/v4 --model glm-4-flash"
)]
struct Options {
    /// Where to serve gRPC; port 0 is any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50051")]
    listen: SocketAddr,
    /// Where to serve OpenAI's API over HTTP; port 0 is any free one [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<SocketAddr>,
    /// Folder for all that has to outlive the process
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The environment server, which gets the turns
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50052")]
    environment: String,
    /// The API, up to its /v1
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Name of the model there
    #[arg(long, value_name = "NAME")]
    model: String,
    /// The mesh that it belongs to (`openclaw-rl mesh id`): components of another one are refused [default: the variable
    /// OPENCLAW_RL_MESH, else the certificate's]
    #[arg(long, value_name = "ID")]
    mesh: Option<String>,
    /// Folder with ca.crt, policy_server.crt and policy_server.key: mutual TLS in both directions [default: plain text]
    #[arg(long, value_name = "DIR")]
    certs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.map_err(|error| Failure(1, error.to_string())).and_then(|runtime| {
        let done = runtime.block_on(serve(options));
        runtime.shutdown_timeout(Duration::from_secs(1));
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(code, text)) => {
            log!("error: {text}");
            ExitCode::from(code)
        }
    }
}

/// Exit code, and what is wrong.
struct Failure(u8, String);

fn bad(option: &str, problem: impl std::fmt::Display) -> Failure {
    Failure(2, format!("{option}: {problem}"))
}

async fn serve(options: Options) -> Result<(), Failure> {
    let secure = options.certs.is_some();
    if !secure && !options.listen.ip().is_loopback() {
        return Err(bad(
            "--listen",
            format!(
                "{} can be reached by others, who could read and change everything: give --certs, or listen on 127.0.0.1",
                options.listen
            ),
        ));
    }
    if let Some(http) = options.http.filter(|http| !http.ip().is_loopback()) {
        let advice = "this door knows no keys: listen on 127.0.0.1, behind a proxy that asks for them";
        return Err(bad("--http", format!("{http} can be reached by others; {advice}")));
    }
    let upstream = Upstream::new(&options.upstream, &options.model, std::env::var("OPENAI_API_KEY").ok())
        .map_err(|error| bad("--upstream", error))?;
    let mut environment = EnvironmentClient::builder().address(&options.environment);
    let (mut tls, mut mesh) = (None, None);
    if let Some(folder) = &options.certs {
        let own = Tls::from_folder(folder, "policy_server").map_err(|error| bad("--certs", error.message()))?;
        environment = environment.tls(own);
        let (config, uri) = credentials(folder).map_err(|error| bad("--certs", error))?;
        (tls, mesh) = (Some(config), Some(uri));
    }
    let id = options.mesh.clone().or_else(|| std::env::var(MESH_VARIABLE).ok()).filter(|id| !id.is_empty());
    let certified = || mesh.as_deref()?.strip_prefix("spiffe://")?.strip_suffix('/').map(str::to_owned);
    let id = id.or_else(certified).unwrap_or_default();
    let membership = Arc::new(Membership::new(id.clone()).map_err(|error| bad("--mesh", error.message()))?);
    let environment = environment.mesh(&id).component(Role::Policy);
    let environment = environment.connect_lazy().map_err(|error| bad("--environment", error.message()))?;

    let stored = |error: io::Error| Failure(1, format!("--data: {}: {error}", options.data.display()));
    let store = Arc::new(Store::open(&options.data).map_err(stored)?);
    let model_id = playbook::model_id(&options.model, &options.upstream);
    let versions = Versions::open(Arc::clone(&store), &options.model, &model_id).map_err(stored)?;
    let versions = Arc::new(versions);
    let delivery = Delivery::builder(environment.connection()).store(Arc::clone(&store) as _).start();
    let mut sending = delivery.events();
    let noting = Arc::clone(&membership);
    tokio::spawn(async move {
        loop {
            match sending.recv().await {
                Ok(Event::Broken(error)) => noting.note(&error),
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    });
    let desk = Arc::new(Desk::new(upstream, Arc::clone(&versions), Arc::clone(&store), delivery, id));

    let used = |text| Failure(1, text);
    let (grpc, address) = listen::bind("--listen", options.listen).await.map_err(used)?;
    let http = match options.http {
        Some(address) => Some(listen::bind("--http", address).await.map_err(used)?),
        None => None,
    };
    let board = Arc::new(Board {
        desk: Arc::clone(&desk),
        store: Arc::clone(&store),
        membership: Arc::clone(&membership),
        address: address.to_string(),
        http_address: http.as_ref().map_or_else(String::new, |(_, address)| format!("http://{address}")),
        started_at: clock::now(),
        secure,
        phase: watch::Sender::new(Phase::Serving),
        grace: Mutex::new(Duration::from_secs(8)),
        counted: Mutex::default(),
    });
    let phase = board.phase.subscribe();

    let (reporter, health) = tonic_health::server::health_reporter();
    let report = async |serving| {
        use tonic_health::ServingStatus::{NotServing, Serving};
        let status = if serving { Serving } else { NotServing };
        for service in [""].into_iter().chain(SERVICES) {
            reporter.set_service_status(service, status).await;
        }
    };
    report(true).await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let policy = Policy::new(Arc::clone(&desk), Receiver::new(store, versions));
    let policy =
        PolicyServiceServer::new(policy).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
    let component = ComponentServiceServer::new(Component(Arc::clone(&board)))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let broken = |error: tonic_reflection::server::Error| Failure(1, error.to_string());
    let guard = Guard { mesh, membership, phase: phase.clone() };
    let routes = Routes::new(policy)
        .add_service(component)
        .add_service(health)
        .add_service(reflection().build_v1().map_err(broken)?)
        .add_service(reflection().build_v1alpha().map_err(broken)?)
        .into_axum_router()
        .layer(axum::middleware::from_fn(move |request: axum::extract::Request, next: axum::middleware::Next| {
            guard::check(guard.clone(), request, next)
        }));
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)));
    if let Some(tls) = tls {
        server = server.tls_config(tls).map_err(|error| bad("--certs", error))?;
    }
    let serving = server.add_routes(Routes::from(routes)).serve_with_incoming_shutdown(
        listen::connections(grpc, listen::SILENCE),
        reached(phase.clone(), Phase::Ending),
    );
    let mut tasks = vec![tokio::spawn(async move { serving.await.map_err(|error| error.to_string()) })];
    if let Some((listener, _)) = http {
        let service = http::router(Arc::clone(&desk)).into_make_service_with_connect_info::<SocketAddr>();
        let listener = listener.tap_io(|tcp| drop(tcp.set_nodelay(true)));
        let serving = axum::serve(listener, service).with_graceful_shutdown(reached(phase.clone(), Phase::Ending));
        tasks.push(tokio::spawn(async move { serving.await.map_err(|error| error.to_string()) }));
    }
    // Before it is said that it serves: who hears that may end it at once.
    let signals = [signal(SignalKind::terminate()), signal(SignalKind::interrupt())];
    let mut ready = format!("policy_server serves gRPC on {}\n", board.address);
    if !board.http_address.is_empty() {
        ready += &format!("policy_server serves HTTP on {}\n", board.http_address);
    }
    let _ = io::stdout().write_all(ready.as_bytes()); // it serves, whether or not somebody reads that

    until_stopped(&desk, phase, signals).await;
    board.close();
    report(false).await;
    let grace = *board.grace.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = async {
        tokio::time::sleep(Duration::from_millis(300)).await; // for those who look at the health
        while desk.running.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(grace, idle).await;
    // What waits in the outbox may go now or after the next start.
    let _ = tokio::time::timeout(Duration::from_secs(1), desk.delivery().flushed()).await;
    board.phase.send_replace(Phase::Ending);
    for task in tasks {
        if let Ok(Ok(Err(error))) = tokio::time::timeout(Duration::from_secs(2), task).await {
            return Err(Failure(1, error));
        }
    }
    Ok(())
}

/// Waits for SIGTERM, SIGINT or Drain; meanwhile writes what could not be written.
async fn until_stopped(desk: &Desk, phase: watch::Receiver<Phase>, [terminate, interrupt]: [io::Result<Signal>; 2]) {
    let signalled = async |signals| match signals {
        Ok(mut signals) => drop(Signal::recv(&mut signals).await),
        Err(_) => std::future::pending().await,
    };
    let retrying = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            desk.retry();
        }
    };
    tokio::select! {
        () = signalled(terminate) => {}
        () = signalled(interrupt) => {}
        () = reached(phase, Phase::Draining) => {}
        () = retrying => {}
    }
}

async fn reached(mut phase: watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|now| *now >= wanted).await;
}

/// What a server with a certificate of the mesh needs, and the beginning of its mesh's URIs.
fn credentials(folder: &Path) -> Result<(ServerTlsConfig, Arc<str>), String> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let (authority, certificate, key) = (read("ca.crt")?, read("policy_server.crt")?, read("policy_server.key")?);
    let der = CertificateDer::from_pem_slice(&certificate).map_err(|error| format!("policy_server.crt: {error}"))?;
    let uris = guard::uris(&der);
    let mesh = match uris.as_slice() {
        [uri] => uri.strip_suffix("policy_server").filter(|mesh| mesh.ends_with('/')),
        _ => None,
    };
    let mesh = mesh.ok_or("policy_server.crt: its URI is not spiffe://MESH/policy_server")?;
    let config = ServerTlsConfig::new()
        .identity(Identity::from_pem(certificate, key))
        .client_ca_root(Certificate::from_pem(authority));
    Ok((config, mesh.into()))
}
