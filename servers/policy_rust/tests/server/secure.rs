use std::path::Path;

use openclaw_rl_client::{Chat, Code, PolicyClient, Tls, v1};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};

use crate::fakes::{Process, World, ask, reason};

/// ca.crt, and certificates of the roles in a mesh.
fn certificates(folder: &Path, mesh: &str, roles: &[&str], issuer: &Issuer<'_, KeyPair>) {
    for role in roles {
        let names = vec![format!("{role}.openclaw-rl.internal")];
        let mut parameters = CertificateParams::new(names).unwrap();
        let uri = format!("spiffe://{mesh}/{role}");
        parameters.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, issuer).unwrap();
        std::fs::write(folder.join(format!("{role}.crt")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{role}.key")), key.serialize_pem()).unwrap();
    }
}

fn authority(folder: &Path) -> Issuer<'static, KeyPair> {
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(folder.join("ca.crt"), parameters.self_signed(&key).unwrap().pem()).unwrap();
    Issuer::new(parameters, key)
}

#[tokio::test]
async fn who_calls_is_known_by_the_certificate() {
    let world = World::new().await;
    let certs = tempfile::tempdir().unwrap();
    let issuer = authority(certs.path());
    certificates(certs.path(), "home", &["policy_server", "operator", "trainer", "prm_judge"], &issuer);
    certificates(certs.path(), "elsewhere", &["env_server"], &issuer);
    let folder = certs.path().to_str().unwrap();
    let server = Process::start(world.data.path(), &world.url, &world.neighbour, &["--certs", folder]);
    let client = |role: &str| {
        let tls = Tls::from_folder(certs.path(), role).unwrap();
        PolicyClient::builder().address(&server.address).tls(tls).connect_lazy().unwrap()
    };
    let operator = client("operator");
    let answer = ask(&operator, Chat::user("What is a heron?")).await.unwrap();
    assert_eq!(answer.text(), "A heron is a bird.");
    assert!(operator.component().check().await.unwrap().status.secure);
    assert_eq!(operator.get_policy().await.unwrap().manifests.len(), 1);
    let judge = client("prm_judge");
    judge.get_policy().await.unwrap();
    assert_eq!(reason(ask(&judge, Chat::user("a")).await), (Code::PermissionDenied, "WRONG_ROLE".into()));
    let sync = async |policy: &PolicyClient| {
        let requests = tokio_stream::pending::<v1::SyncWeightsRequest>();
        policy.raw().sync_weights(requests).await.map_err(|status| policy.connection().error(status))
    };
    sync(&client("trainer")).await.unwrap();
    assert_eq!(reason(sync(&operator).await), (Code::PermissionDenied, "WRONG_ROLE".into()));
    let foreign = client("env_server");
    assert_eq!(reason(ask(&foreign, Chat::user("a")).await), (Code::PermissionDenied, "FOREIGN_MESH".into()));
    let nobody = PolicyClient::builder().address(&server.address).connect_lazy().unwrap();
    let error = nobody.get_policy().await.unwrap_err();
    assert!(error.message().contains("TLS"), "{error}");
}
