//! Runs specs: processes of Kubernetes' own binary side by side, those that want the cluster for themselves after the others, and
//! what failed once more alone, so that a slow machine is told apart from a wrong answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use tokio::process::Command;

/// Processes side by side: specs wait more than they compute.
const WORKERS: usize = 4;
/// Of one process. A spec that finds nothing waits for five minutes, and goes on to the next.
const LONGEST: Duration = Duration::from_hours(2);
/// The file that processes append to, and that says what has ended.
const RESULTS: &str = "results.jsonl";

/// How specs reach an API server.
#[derive(Debug)]
pub(crate) struct Target {
    /// What it is called in the table.
    pub(crate) view: &'static str,
    pub(crate) kubeconfig: PathBuf,
    /// Of the kubeconfig; none: the current one.
    pub(crate) context: Option<String>,
    /// For `HTTPS_PROXY`.
    pub(crate) proxy: Option<String>,
}

/// Who runs specs.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) program: PathBuf,
    /// What they log goes into a folder per view in there.
    pub(crate) folder: PathBuf,
}

/// How a spec ended.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Outcome {
    spec: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) message: String,
    /// What it logged, if it failed.
    #[serde(default)]
    output: String,
    /// That it failed beside others, and then alone did not.
    #[serde(skip)]
    pub(crate) passed_alone: bool,
}

impl Outcome {
    pub(crate) fn passed(&self) -> bool {
        self.state == "passed"
    }

    /// Specs that find nothing to try say so.
    pub(crate) fn skipped(&self) -> bool {
        self.state == "skipped"
    }
}

/// How specs ended through one view. What is not in here never did.
#[derive(Debug, Default)]
pub(crate) struct Ended(BTreeMap<String, Outcome>);

impl Ended {
    pub(crate) fn of(&self, spec: &str) -> Option<&Outcome> {
        self.0.get(spec)
    }

    pub(crate) fn passed(&self) -> impl Iterator<Item = &str> {
        let passed = self.0.iter().filter(|(_, outcome)| outcome.passed());
        passed.map(|(spec, _)| spec.as_str())
    }

    /// One line of JSON each; what was cut when its process was ended counts as not ended.
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        Self(lines.map(|outcome: Outcome| (outcome.spec.clone(), outcome)).collect())
    }

    /// Takes what those did that were run alone.
    pub(crate) fn correct(&mut self, alone: Self) {
        for (spec, mut outcome) in alone.0 {
            outcome.passed_alone = outcome.passed();
            self.0.insert(spec, outcome);
        }
    }
}

/// The names in a list of specs, `#` begins a remark; all that have one of the words of `wanted` in them, which are parted by `|`.
pub(crate) fn named(list: &str, wanted: &str) -> Vec<String> {
    let names = list.lines().map(str::trim);
    let is_wanted = |name: &&str| wanted.split('|').any(|words| name.contains(words));
    let names = names.filter(|name| !name.is_empty() && !name.starts_with('#') && is_wanted(name));
    names.map(str::to_owned).collect()
}

impl Runner {
    /// Runs these specs. An error is one of the machine, never that of a spec.
    pub(crate) async fn run(&self, target: &Target, specs: &[String]) -> anyhow::Result<Ended> {
        let folder = self.folder.join(target.view);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).context("no folder for what specs log")?;
        println!("{}: {} specs", target.view, specs.len());
        let (serial, others): (Vec<_>, Vec<_>) = specs.iter().cloned().partition(|spec| spec.contains("[Serial]"));
        let mut parts = vec![Vec::new(); WORKERS];
        for (at, spec) in others.into_iter().enumerate() {
            parts[at % WORKERS].push(spec);
        }
        let beside = parts.iter().enumerate().map(|(at, part)| {
            let folder = folder.join(format!("worker-{at}"));
            async move { self.process(target, &folder, part).await }
        });
        let mut ended = Ended::default();
        for part in futures::future::try_join_all(beside).await? {
            ended.0.extend(part.0);
        }
        let alone = self.process(target, &folder.join("serial"), &serial).await?;
        ended.0.extend(alone.0);
        let is_to_be_tried = |spec: &&String| {
            let outcome = ended.of(spec);
            outcome.is_none_or(|outcome| !outcome.passed() && !outcome.skipped())
        };
        let again: Vec<String> = specs.iter().filter(is_to_be_tried).cloned().collect();
        ended.correct(self.process(target, &folder.join("alone"), &again).await?);
        write_logs(&folder, &ended)?;
        Ok(ended)
    }

    /// One process, to its end; what it had to say but for results is in the folder.
    async fn process(&self, target: &Target, folder: &Path, specs: &[String]) -> anyhow::Result<Ended> {
        if specs.is_empty() {
            return Ok(Ended::default());
        }
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("specs"), specs.join("\n"))?;
        let log = std::fs::File::create(folder.join("log"))?;
        let mut command = Command::new(&self.program);
        command
            .current_dir(folder)
            .arg(format!("--kubeconfig={}", target.kubeconfig.display()))
            .arg(format!(
                "--kubectl-path={}",
                portolan_testbed::tool("kubectl").display()
            ))
            .args(["--provider=skeleton", "--num-nodes=1", "--specs=specs", "--leashed"])
            .arg(format!("--results={RESULTS}"))
            // Nothing is there that could be waited for.
            .args(["--allowed-not-ready-nodes=-1", "--minStartupPods=-1"])
            .args(["--dump-logs-on-failure=false", "--test.timeout=0", "--ginkgo.succinct"])
            .arg(format!("--ginkgo.timeout={}s", LONGEST.as_secs()))
            .args(target.context.iter().map(|context| format!("--context={context}")))
            .envs(target.proxy.iter().map(|proxy| ("HTTPS_PROXY", proxy)))
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        let mut child = command.spawn().context("cannot run Kubernetes' specs")?;
        // Held to its end: the kernel closes it if this process is ended, and the specs end too.
        let leash = child.stdin.take();
        // Its code says whether a spec failed, which the results tell better.
        child.wait().await.context("cannot wait for Kubernetes' specs")?;
        drop(leash);
        let results = std::fs::read_to_string(folder.join(RESULTS));
        let results = results.with_context(|| format!("no spec ended: see {}", folder.join("log").display()))?;
        Ok(Ended::parse(&results))
    }
}

/// A file for each spec that failed.
fn write_logs(folder: &Path, ended: &Ended) -> anyhow::Result<()> {
    let failed = ended.0.values().filter(|outcome| !outcome.output.is_empty());
    for (at, outcome) in failed.enumerate() {
        let text = format!("{}\n\n{}\n\n{}\n", outcome.spec, outcome.message, outcome.output);
        std::fs::write(folder.join(format!("failed-{at}.log")), text)?;
    }
    Ok(())
}

#[test]
fn what_has_ended_is_known_of_a_process_that_was_ended() {
    let text = "{\"spec\":\"a\",\"state\":\"passed\",\"seconds\":1}\n{\"spec\":\"b\",\"state\":\"failed\",\"seconds\":2,\"message\":\"no\"}\n{\"spec\":\"c\",\"sta";
    let mut ended = Ended::parse(text);
    assert_eq!(ended.passed().collect::<Vec<_>>(), ["a"]);
    assert_eq!(ended.of("b").unwrap().message, "no");
    assert!(ended.of("c").is_none());
    ended.correct(Ended::parse("{\"spec\":\"b\",\"state\":\"passed\",\"seconds\":1}"));
    assert!(ended.of("b").unwrap().passed_alone);
}

#[test]
fn a_list_has_remarks_and_is_narrowed() {
    assert_eq!(
        named("# which\n[sig-a] one\n\n[sig-b] two\n", ""),
        ["[sig-a] one", "[sig-b] two"]
    );
    assert_eq!(named("[sig-a] one\n[sig-b] two\n", "sig-b|three"), ["[sig-b] two"]);
}
