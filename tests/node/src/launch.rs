//! The beginning of a container's run: of what the Pod says, a running program.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdout};

use crate::field::Place;
use crate::image::Image;
use crate::isolation::{Isolation, User};
use crate::machine::{Inside, Machine};
use crate::material::Material;
use crate::plain;
use crate::process::{Line, Output, Process};
use crate::root::{self, Mount};
use crate::sandbox::Sandbox;
use crate::variables::{self, Sources};
use crate::volumes;

const ENTER: &str = include_str!("scripts/enter.sh");
/// Of what a program that does not start complains; more is not shown to anybody.
const MAX_COMPLAINT_BYTES: u64 = 4096;

/// Where the containers of a Pod run, and with what.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) place: Place,
    pub(crate) sandbox: Sandbox,
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) process: Process,
    pub(crate) stdout: BufReader<ChildStdout>,
    pub(crate) stderr: ChildStderr,
    pub(crate) inside: Inside,
}

/// Why a container does not run: the words of its status.
#[derive(Debug)]
pub(crate) struct CannotStart {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// It was as good as run: whether it is tried again is up to its policy.
    pub(crate) counts: bool,
}

/// One run to be.
pub(crate) struct Launch<'a> {
    pub(crate) machine: &'a Arc<Machine>,
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) ground: &'a Ground,
}

impl Launch<'_> {
    /// Starts the program.
    pub(crate) async fn start(&self) -> Result<Launched, CannotStart> {
        let name = self.container.image.as_deref().unwrap_or_default();
        let Some(image) = self.machine.images.find(name) else {
            let known: Vec<_> = self.machine.images.names().collect();
            let message = format!(
                "this node has no program for image {name:?}; it has: {}",
                known.join(", ")
            );
            return Err(cannot("ErrImagePull", message));
        };
        let env = self.environment().await?;
        let (line, inside) = self
            .line(image, env)
            .map_err(|error| cannot("CreateContainerError", format!("{error:#}")))?;
        let started = started(&self.machine.tools.sh, &line, inside).await;
        started.map_err(|error| CannotStart {
            reason: "StartError",
            message: format!("{error:#}"),
            counts: true,
        })
    }

    async fn environment(&self) -> Result<BTreeMap<String, String>, CannotStart> {
        let wrong = |message| cannot("CreateContainerConfigError", message);
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let references = variables::references(self.container);
        let material = Material::fetch(&self.machine.client, namespace, references).await;
        let sources = Sources {
            pod: self.pod,
            place: &self.ground.place,
            material: &material.map_err(|error| wrong(format!("{error:#}")))?,
            api_server: (&self.machine.api_server.0, self.machine.api_server.1),
        };
        variables::environment(self.container, &sources).map_err(wrong)
    }

    /// The command line of the program, with all that stands around it.
    fn line(&self, image: &Image, mut env: BTreeMap<String, String>) -> Result<(Line, Inside)> {
        let cwd = self.container.working_dir.clone().unwrap_or_else(|| "/".to_owned());
        let mut argv = self.ground.sandbox.enter(&self.machine.tools);
        let (around, program) = match self.machine.isolation {
            Isolation::None => {
                plain::settle(self.machine, self.pod, self.container, image, &mut env)?;
                (plain::words(self.machine, &cwd), image.program.display().to_string())
            }
            Isolation::Full(_) => (self.unshare(User::Capable, image, &cwd, &env)?, root::program(image)),
            Isolation::Mounts(user) => (self.unshare(user, image, &cwd, &env)?, root::program(image)),
        };
        argv.extend(around);
        argv.extend(variables::command(self.container, image, &program, &env));
        let line = Line { argv, env: env.clone() };
        Ok((line, Inside { pid: 0, env, cwd }))
    }

    /// The words that make a root, and processes, of its own; the program comes after them.
    fn unshare(&self, user: User, image: &Image, cwd: &str, env: &BTreeMap<String, String>) -> Result<Vec<String>> {
        let folder = self.machine.pod_folder(self.pod);
        let folder = folder.join("containers").join(&self.container.name);
        let (root, list) = (folder.join("root"), folder.join("root.list"));
        std::fs::create_dir_all(&root).with_context(|| format!("creating {}", root.display()))?;
        let mut mounts = volumes::mounts(self.machine, self.pod, self.container, env)?;
        for (name, text) in root::etc(self.pod, &self.ground.place) {
            let (source, target) = (folder.join(name), format!("/etc/{name}"));
            std::fs::write(&source, text).with_context(|| format!("writing {}", source.display()))?;
            // The Pod may bring its own.
            if !mounts.iter().any(|mount| mount.target == target) {
                mounts.push(Mount {
                    source,
                    target,
                    read_only: false,
                });
            }
        }
        let listed = root::list(image, &mounts, !self.ground.sandbox.is_own())?;
        std::fs::write(&list, listed).with_context(|| format!("writing {}", list.display()))?;
        let host = root::host_name(self.pod);
        let tools = &self.machine.tools;
        let [root, list] = [root, list].map(|path| path.display().to_string());
        let namespaces = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--"];
        let script = [&tools.sh, "-c", ENTER, "sh"];
        let words = [&[tools.unshare.as_str()], user.flags(), &namespaces, &script].concat();
        let own = [&root, &list, &host, cwd];
        Ok(words.into_iter().chain(own).map(str::to_owned).collect())
    }
}

fn cannot(reason: &'static str, message: String) -> CannotStart {
    let counts = false;
    CannotStart {
        reason,
        message,
        counts,
    }
}

/// Runs the line until the program itself has begun, or is known not to.
async fn started(sh: &str, line: &Line, mut inside: Inside) -> Result<Launched> {
    let (process, Output { stdout, mut stderr }) = Process::spawn(sh, line)?;
    let mut stdout = BufReader::new(stdout);
    let mut first = String::new();
    stdout.read_line(&mut first).await?;
    let Ok(pid) = first.trim_end().parse() else {
        drop(process);
        let mut complaint = Vec::new();
        (&mut stderr)
            .take(MAX_COMPLAINT_BYTES)
            .read_to_end(&mut complaint)
            .await?;
        bail!("{}", String::from_utf8_lossy(&complaint).trim());
    };
    inside.pid = pid;
    Ok(Launched {
        process,
        stdout,
        stderr,
        inside,
    })
}
