//! Whether routers can be told to reach a member as its kubeconfig does.

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use portolan_crds::MemberCluster;

use crate::cli::RegisterArgs;
use crate::connect::Cluster;

/// Refuses a kubeconfig's way that only its holder has, unless another is given or registered; takes the CA certificates of
/// `--ca-file`.
pub(super) fn check(args: &RegisterArgs, member: &mut Cluster, present: Option<&MemberCluster>) -> anyhow::Result<()> {
    if let Some(file) = &args.ca_file {
        let pem = std::fs::read_to_string(file).with_context(|| format!("cannot read --ca-file {}", file.display()))?;
        if !pem.contains("-----BEGIN CERTIFICATE-----") {
            bail!("--ca-file {} has no certificate in PEM", file.display());
        }
        member.ca_pem = pem;
    }
    let is_registered = present.is_some_and(|present| !present.spec.endpoints.is_empty());
    if args.endpoint.is_none() && !is_registered {
        if is_loopback(&member.url) {
            bail!(
                "the kubeconfig reaches the API server at {}, which is this machine to whoever dials it: say by --endpoint URL how \
                 routers reach it, and by --ca-file FILE which CA signs for that if it is another",
                member.url
            );
        }
        if member.insecure {
            bail!(
                "the kubeconfig does not verify the API server's certificate, and routers do: say by --endpoint URL and --ca-file FILE \
                 how they reach it and which CA signs for it"
            );
        }
    }
    if member.ca_pem.is_empty() && !is_registered {
        bail!(
            "the kubeconfig has no certificate-authority-data, by which routers verify the API server: give the CA certificates by \
             --ca-file FILE"
        );
    }
    Ok(())
}

fn is_loopback(url: &str) -> bool {
    let Ok(url) = url.parse::<http::Uri>() else {
        return false;
    };
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost" || host.ends_with(".localhost"), |address| {
        address.is_loopback() || address.is_unspecified()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_this_machine_to_everybody_is_told_apart() {
        for url in [
            "https://127.0.0.1:6443",
            "https://localhost:6443/",
            "https://[::1]:6443",
            "https://0.0.0.0:1",
        ] {
            assert!(is_loopback(url), "{url}");
        }
        for url in [
            "https://10.0.0.1:6443",
            "https://api.example.com",
            "https://[fd00::1]:6443",
            "https://localhost.example.com",
        ] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
