//! Encryption of connections to PostgreSQL, as `sslmode` of libpq selects it.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The longest file of passwords or certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The contents of a small file.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = OsDisk::new().open(path, Open::Read, Caching::Buffered)?;
    let mut bytes = vec![0; file.len()?.min(FILE_BYTES_MAX) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// How much of a server's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    /// An authority of the given file has signed it.
    Authority,
    /// The same, and it is of the host to which the connection was opened.
    AuthorityAndName,
}

/// Whether connections are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    Disabled,
    /// If the server supports it. Its certificate is not checked.
    Preferred,
    /// Always; and what is checked, against the authorities in a file.
    Required(Option<(Verified, PathBuf)>),
}

impl Tls {
    pub(super) fn mode(&self) -> SslMode {
        match self {
            Self::Disabled => SslMode::Disable,
            Self::Preferred => SslMode::Prefer,
            Self::Required(_) => SslMode::Require,
        }
    }

    /// The TLS connector of a connection.
    ///
    /// # Errors
    /// The file of the authorities.
    pub(super) fn connector(&self) -> io::Result<MakeRustlsConnect> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let inner = match self {
            Self::Required(Some((verified, path))) => {
                let roots = Arc::new(authorities(path)?);
                let built =
                    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
                let inner = built.build().map_err(|error| in_file(path, error))?;
                Some((*verified, inner as Arc<dyn ServerCertVerifier>))
            }
            _ => None,
        };
        let verifier = Arc::new(Verifier { provider: Arc::clone(&provider), inner });
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }
}

fn in_file(path: &Path, error: impl std::fmt::Display) -> io::Error {
    let what = format!(
        "{}: {error}; give a PEM file with the certificates of the authority in sslrootcert",
        path.display()
    );
    io::Error::new(ErrorKind::InvalidInput, what)
}

fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let text = read_file(path).map_err(|error| in_file(path, error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| in_file(path, error))?;
        roots.add(certificate).map_err(|error| in_file(path, error))?;
    }
    Ok(roots)
}

/// Checks as much of a certificate as `sslmode` demands.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    inner: Option<(Verified, Arc<dyn ServerCertVerifier>)>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some((verified, inner)) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        let outcome = inner.verify_server_cert(certificate, intermediates, name, ocsp, now);
        match outcome {
            // The name is checked last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if *verified == Verified::Authority => Ok(ServerCertVerified::assertion()),
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
