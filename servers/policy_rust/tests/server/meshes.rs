use openclaw_rl_client::{Chat, Code, PolicyClient, Role, v1};

use crate::fakes::{OURS, World, ask, reason};

fn client(address: &str, mesh: &str, role: Option<Role>) -> PolicyClient {
    let builder = PolicyClient::builder().address(address).mesh(mesh);
    role.into_iter().fold(builder, |builder, role| builder.component(role)).connect_lazy().unwrap()
}

async fn wrong_mesh(policy: &PolicyClient) -> Option<String> {
    let status = policy.component().status().await.unwrap();
    assert_eq!(status.mesh_id, OURS);
    status.alarms.into_iter().find(|alarm| alarm.name == "wrong_mesh").map(|alarm| alarm.message)
}

#[tokio::test]
async fn another_mesh_is_refused() {
    let world = World::new().await;
    let server = world.start();
    let sync = async |policy: &PolicyClient| {
        let requests = tokio_stream::pending::<v1::SyncWeightsRequest>();
        policy.raw().sync_weights(requests).await.map_err(|status| policy.connection().error(status))
    };
    let anybody = client(&server.address, "", None);
    ask(&anybody, Chat::user("What is a heron?")).await.unwrap();
    assert_eq!(wrong_mesh(&anybody).await, None);
    let refusal = (Code::FailedPrecondition, "WRONG_MESH".to_owned());
    assert_eq!(reason(sync(&anybody).await), refusal);
    let theirs = client(&server.address, "mesh-b", Some(Role::Trainer));
    let error = sync(&theirs).await.unwrap_err();
    assert!(error.message().contains("trainer of the mesh mesh-b calls policy_server of the mesh mesh-a"), "{error}");
    assert_eq!(reason(ask(&theirs, Chat::user("a")).await), refusal);
    sync(&client(&server.address, OURS, Some(Role::Trainer))).await.unwrap();
    let judge = client(&server.address, OURS, Some(Role::Judge));
    assert_eq!(reason(sync(&judge).await), (Code::PermissionDenied, "WRONG_ROLE".into()));
    let status = anybody.component().status().await.unwrap();
    assert!(status.alarms.is_empty() && status.detail.contains("trainer of the mesh mesh-b calls here"), "{status:?}");
    assert_eq!(status.gauges["foreign_calls_refused"], 2.0);
}

#[tokio::test]
async fn an_environment_server_of_another_mesh_gets_no_turns() {
    let world = World::new().await;
    *world.environment.mesh.lock().unwrap() = "mesh-b".into();
    let server = world.start();
    let policy = server.client().await;
    let answer = ask(&policy, Chat::user("What is a heron?")).await.unwrap();
    let mut said = None;
    while said.is_none() {
        said = wrong_mesh(&policy).await;
    }
    assert!(said.unwrap().contains("of the mesh mesh-b, and mesh-a is expected"));
    assert!(world.environment.events.lock().unwrap().is_empty());
    world.environment.mesh.lock().unwrap().clear(); // the right one is there again
    let turn = world.environment.turn(&answer.start.turn_id).await;
    assert_eq!(turn.mesh_id, OURS);
}
