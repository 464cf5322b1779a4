//! What Prometheus would have scraped while a fault was made, as a rule test for `promtool`: each look is one minute.
//!
//! A minute stands for some seconds at most, so rates are lower in the test than they were. What the last two looks say goes
//! on: gauges stay, counters go on by their last step, ages by the clock.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::exposed::series;
use crate::{Ground, PROGRAMS};

/// Minutes of a test that goes on.
const GOES_ON: usize = 80;

#[derive(Debug)]
pub(crate) struct Recorded {
    name: &'static str,
    began: u64,
    looks: usize,
    /// One value a look; none while its program is not there.
    series: BTreeMap<String, Vec<Option<f64>>>,
}

impl Recorded {
    pub(crate) fn new(name: &'static str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self {
            name,
            began: now.as_secs(),
            looks: 0,
            series: BTreeMap::new(),
        }
    }

    /// As if it had been then.
    pub(crate) fn at(mut self, began: u64) -> Self {
        self.began = began;
        self
    }

    /// One scrape of every program.
    pub(crate) async fn look(&mut self, ground: &Ground) {
        for (program, job) in PROGRAMS {
            let target = format!("instance=\"{program}\",job=\"{job}\"");
            let told = ground.told(program).await;
            self.put(&format!("up{{{target}}}"), if told.is_some() { 1.0 } else { 0.0 });
            for (name, value) in told.as_deref().into_iter().flat_map(series) {
                let labelled = match name.strip_suffix('}') {
                    Some(empty) if empty.ends_with('{') => format!("{empty}{target}}}"),
                    Some(labelled) => format!("{labelled},{target}}}"),
                    None => format!("{name}{{{target}}}"),
                };
                self.put(&labelled, value);
            }
        }
        self.looks += 1;
        for values in self.series.values_mut() {
            values.resize(self.looks, None);
        }
    }

    fn put(&mut self, name: &str, value: f64) {
        let values = self.series.entry(name.to_owned()).or_default();
        values.resize(self.looks, None);
        values.push(Some(value));
    }

    /// The last value of the first series of this name, whatever its labels.
    pub(crate) fn last(&self, name: &str) -> Option<f64> {
        let of_name = |series: &&String| series.split('{').next() == Some(name);
        let found = self.series.keys().filter(of_name);
        found.filter_map(|series| *self.series[series].last()?).reduce(f64::min)
    }

    /// Whether a series of this name with these words among its labels has the value.
    pub(crate) fn any(&self, name: &str, words: &str, value: f64) -> bool {
        let fits = |series: &str| series.split('{').next() == Some(name) && series.contains(words);
        let mut values = self.series.iter().filter(|(series, _)| fits(series));
        values.any(|(_, values)| values.last() == Some(&Some(value)))
    }

    /// Whether a series of this name with these words among its labels was lower before.
    pub(crate) fn rises(&self, name: &str, words: &str) -> bool {
        let fits = |series: &str| series.split('{').next() == Some(name) && series.contains(words);
        let mut values = self.series.iter().filter(|(series, _)| fits(series));
        values.any(|(_, values)| {
            values
                .last()
                .is_some_and(|last| last.is_some_and(|last| rises(values, last)))
        })
    }

    /// Forgets all other metrics.
    pub(crate) fn keep(&mut self, name: &str) {
        self.series.retain(|series, _| series.split('{').next() == Some(name));
    }

    /// The minute of the last look.
    pub(crate) fn now(&self) -> usize {
        self.looks - 1
    }

    /// The test: `quiet` says up to when none of the alerts may fire; all of them must after it.
    pub(crate) fn test(&self, alerts: &[&str], quiet: usize) -> String {
        let mut test = format!(
            "  - name: {}\n    interval: 1m\n    start_timestamp: {}\n",
            self.name, self.began
        );
        test += "    input_series:\n";
        // The rules read no others.
        let ours = |name: &&String| name.starts_with("portolan_") || name.starts_with("up{");
        for name in self.series.keys().filter(ours) {
            writeln!(test, "      - {{series: '{name}', values: '{}'}}", self.values(name)).unwrap();
        }
        let end = self.looks + GOES_ON - 1;
        let series = format!("ALERTS{{alertstate=\"firing\",alertname=~\"{}\"}}", alerts.join("|"));
        let firing = format!("group by (alertname) ({series})");
        // Those of something that happened once do not fire for ever.
        let fired = format!("group by (alertname) (last_over_time({series}[{}m]))", end - quiet);
        writeln!(test, "    promql_expr_test:").unwrap();
        writeln!(
            test,
            "      - {{expr: '{firing}', eval_time: {quiet}m, exp_samples: []}}"
        )
        .unwrap();
        writeln!(
            test,
            "      - expr: '{fired}'\n        eval_time: {end}m\n        exp_samples:"
        )
        .unwrap();
        for alert in alerts {
            writeln!(test, "          - {{labels: '{{alertname=\"{alert}\"}}', value: 1}}").unwrap();
        }
        test
    }

    /// So many minutes more, in which all goes on as it was in the last two looks.
    pub(crate) fn go_on(&mut self, minutes: u32) {
        for (name, values) in &mut self.series {
            let going = going_on(name, values, Ages::Stay);
            values.extend((0..minutes).map(|minute| going.map(|(next, step)| next + step * f64::from(minute))));
        }
        self.looks += usize::try_from(minutes).unwrap();
    }

    fn values(&self, name: &str) -> String {
        let values = &self.series[name];
        let word = |value: &Option<f64>| value.map_or("_".to_owned(), |it| it.to_string());
        let mut words: Vec<String> = values.iter().map(word).collect();
        if let Some((next, step)) = going_on(name, values, Ages::Rise) {
            words.push(format!("{next}+{step}x{}", GOES_ON - 1));
        }
        words.join(" ")
    }
}

/// What ages do: of what is well they are small, and never rise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ages {
    Stay,
    Rise,
}

/// What a series has in the next minute, and by how much more in each that follows; nothing while its program is away.
fn going_on(name: &str, values: &[Option<f64>], ages: Ages) -> Option<(f64, f64)> {
    let [.., before, Some(last)] = values else {
        return None;
    };
    let metric = name.split('{').next().unwrap_or(name);
    let moved = last - before.unwrap_or(*last);
    let counts = ["_total", "_bucket", "_count", "_sum"]
        .iter()
        .any(|end| metric.ends_with(end));
    let step = if metric.ends_with("_age_seconds") && rises(values, *last) && ages == Ages::Rise {
        60.0
    } else if counts {
        moved.max(0.0)
    } else {
        0.0
    };
    Some((last + step, step))
}

/// Whether the last other value is lower: ages are whole seconds, and looks may be closer than that.
fn rises(values: &[Option<f64>], last: f64) -> bool {
    let mut others = values
        .iter()
        .rev()
        .flatten()
        .filter(|value| (**value - last).abs() > 0.0);
    others.next().is_some_and(|other| *other < last)
}
