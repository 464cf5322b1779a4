//! Containers where namespaces are refused: plain processes, that see this machine as it is. They have no volumes but the
//! token of their ServiceAccount, which a kubeconfig leads them to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::image::Image;
use crate::machine::Machine;

/// Where admission mounts the token of the ServiceAccount.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The program says who it is, as `scripts/enter.sh` does.
const SCRIPT: &str = r#"
cwd=$1
shift
cd "$cwd"
command -v "$1" >/dev/null || { echo "there is no program $1" >&2; exit 127; }
echo $$
exec "$@"
"#;

/// The words that stand before the program.
pub(crate) fn words(machine: &Machine, cwd: &str) -> Vec<String> {
    [&machine.tools.sh, "-c", SCRIPT, "sh", cwd].map(str::to_owned).to_vec()
}

/// Makes up for what the container does not find in its place; the error says what cannot be made up for.
pub(crate) fn settle(
    machine: &Machine,
    pod: &Pod,
    container: &Container,
    image: &Image,
    env: &mut BTreeMap<String, String>,
) -> Result<()> {
    // What the Pod calls by its name alone.
    let own = image.program.parent().unwrap_or(Path::new("/")).display();
    let path = env.get("PATH").map(String::as_str).unwrap_or_default();
    env.insert("PATH".to_owned(), format!("{own}:{path}"));
    for mount in container.volume_mounts.iter().flatten() {
        if mount.mount_path != ACCOUNT {
            let path = &mount.mount_path;
            bail!("nothing can be mounted at {path}: this machine refuses mount namespaces");
        }
        let folder = machine.pod_folder(pod);
        let file = folder.join("kubeconfig");
        let text = kubeconfig(machine, pod, &folder.join("volumes").join(&mount.name));
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        let file = file.display().to_string();
        env.entry("KUBECONFIG".to_owned()).or_insert(file);
    }
    Ok(())
}

fn kubeconfig(machine: &Machine, pod: &Pod, account: &Path) -> String {
    let ((host, port), account) = (&machine.api_server, account.display());
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut yaml = String::from("apiVersion: v1\nkind: Config\ncurrent-context: pod\n");
    let _ = writeln!(
        yaml,
        "clusters: [{{name: pod, cluster: {{server: \"https://{host}:{port}\", certificate-authority: \"{account}/ca.crt\"}}}}]"
    );
    let _ = writeln!(yaml, "users: [{{name: pod, user: {{tokenFile: \"{account}/token\"}}}}]");
    let _ = writeln!(
        yaml,
        "contexts: [{{name: pod, context: {{cluster: pod, user: pod, namespace: \"{namespace}\"}}}}]"
    );
    yaml
}
