//! Certificates that are made when they are wanted, and rustls's configurations of them. Shared by several programs of tests.

#![allow(dead_code, reason = "no program uses all of it")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use graviola::signing::eddsa::Ed25519SigningKey;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyUsagePurpose, PublicKeyData,
    SignatureAlgorithm, SigningKey, date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};

/// An authority that signs certificates of others.
pub(crate) struct Authority {
    issuer: Issuer<'static, Key>,
    certificate: CertificateDer<'static>,
}

/// A certificate and its key, as somebody shows them.
pub(crate) struct Shown {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

struct Key {
    key: Ed25519SigningKey,
    public: [u8; 32],
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls_graviola::default_provider())
}

impl Key {
    fn new() -> Self {
        Self::of(Ed25519SigningKey::generate().expect("random bytes"))
    }

    fn of(key: Ed25519SigningKey) -> Self {
        let public = key.public_key().as_bytes();
        Self { key, public }
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.key.sign(message).to_vec())
    }
}

/// Of a name that nothing else in this process has.
fn params(name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let serial = SERIAL.fetch_add(1, Relaxed);
    let name = format!("{name} {serial}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(serial.into());
    params
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::with(Key::new(), params("an authority", &[]))
    }

    /// The same one in every process.
    pub(crate) fn known() -> Self {
        let key = Ed25519SigningKey::from_bytes(&[7; 32]).expect("a seed");
        let mut params = params("", &[]);
        let name = "a known authority";
        params.distinguished_name.push(DnType::CommonName, name);
        Self::with(Key::of(key), params)
    }

    fn with(key: Key, mut params: CertificateParams) -> Self {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).expect("signed").der().clone();
        let issuer = Issuer::new(params, key);
        Self {
            issuer,
            certificate,
        }
    }

    /// A certificate for DNS names and IP addresses.
    pub(crate) fn issue(&self, names: &[&str]) -> Shown {
        self.sign(params("somebody", names))
    }

    /// One whose time is over.
    pub(crate) fn expired(&self, names: &[&str]) -> Shown {
        let mut params = params("somebody of old", names);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Shown {
        let key = Key::new();
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        let mut room = [0; 256];
        let pkcs8 = key.key.to_pkcs8_der(&mut room).expect("room");
        Shown {
            chain: vec![signed.der().clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.to_vec())),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("an authority");
        roots
    }

    /// For who dials, trusts this authority and shows this, if anything.
    pub(crate) fn client(&self, shown: Option<&Shown>) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(self.roots());
        Arc::new(match shown {
            None => builder.with_no_client_auth(),
            Some(shown) => builder
                .with_client_auth_cert(shown.chain.clone(), shown.key.clone_key())
                .expect("a key"),
        })
    }

    /// For who listens, shows this and, where `mutual`, demands a certificate by this authority.
    pub(crate) fn server(&self, shown: &Shown, mutual: bool) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = if mutual {
            let roots = Arc::new(self.roots());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(shown.chain.clone(), shown.key.clone_key());
        Arc::new(config.expect("a key"))
    }
}
