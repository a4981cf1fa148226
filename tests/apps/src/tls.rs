//! A key and a certificate for 127.0.0.1 that signs itself.

use harness::Result;
use harness::lab::{Lab, Side};
use std::time::Duration;

pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) fn certificate(lab: &Lab) -> Result<Pair> {
    let path = |name: &str| lab.path().join(name).display().to_string();
    let pair = Pair { certificate: path("certificate.pem"), key: path("key.pem") };
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let args = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        names,
        "-keyout",
        &pair.key,
        "-out",
        &pair.certificate,
    ];
    lab.run(Side::Kernel, "openssl", &args, Duration::from_secs(20))?;
    Ok(pair)
}
