//! Stages of a test run: what each took against its share of the CI budget, and what it counted.

use std::time::Instant;

use super::counts::Counts;

/// Seconds a stage should take on two cores from a clean checkout; the whole of CI has 25 minutes.
const BUDGET_S: &[(&str, u64)] = &[
    ("build", 540),
    ("kernels", 120),
    ("core, ABI, text", 210),
    ("simulation", 90),
    ("models and system", 150),
    ("emulated", 240),
    ("python clients", 60),
];

/// Stages that have a budget together.
const TOGETHER: (&str, [&str; 2], u64) = ("kernels + emulated", ["kernels", "emulated"], 360);

#[derive(Debug)]
struct Stage {
    name: &'static str,
    seconds: f64,
    counts: Option<Counts>,
}

/// The stages so far.
#[derive(Debug, Default)]
pub struct Stages(Vec<Stage>);

impl Stages {
    /// A stage that later ones need: its failure ends the run.
    pub fn prepare<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let start = Instant::now();
        let result = work().map_err(|e| format!("{name}: {e}"));
        self.0.push(Stage { name, seconds: start.elapsed().as_secs_f64(), counts: None });
        result
    }

    /// A stage of tests; one that could not be run counts as a failure.
    pub fn count(&mut self, name: &'static str, work: impl FnOnce() -> Result<Counts, String>) {
        println!("== {name}");
        let start = Instant::now();
        let counts = work().unwrap_or_else(|e| Counts::of_one(Err(format!("{name}: {e}"))));
        self.0.push(Stage { name, seconds: start.elapsed().as_secs_f64(), counts: Some(counts) });
    }

    /// The sum over all stages.
    pub fn total(&self) -> Counts {
        self.0.iter().filter_map(|s| s.counts).fold(Counts::default(), |a, b| a + b)
    }

    /// One line per stage: seconds, budget, counts, and whether it took longer than it should; then one of those that share a budget.
    pub fn table(&self) -> String {
        let mut text = format!("{:24}{:>9}{:>9}{:>8}{:>8}\n", "stage", "s", "budget s", "passed", "failed");
        for stage in &self.0 {
            let budget = BUDGET_S.iter().find(|(name, _)| *name == stage.name);
            text += &line(stage, budget.map(|(_, s)| *s));
        }
        let (name, parts, budget) = TOGETHER;
        let together = || self.0.iter().filter(|s| parts.contains(&s.name));
        if together().count() > 0 {
            let seconds = together().map(|s| s.seconds).sum();
            let counts = Some(together().filter_map(|s| s.counts).fold(Counts::default(), |a, b| a + b));
            text += &line(&Stage { name, seconds, counts }, Some(budget));
        }
        text
    }
}

/// One line of the table.
fn line(stage: &Stage, budget: Option<u64>) -> String {
    // A word and no failure: a busy machine is nobody's mistake.
    let over = if budget.is_some_and(|s| stage.seconds > s as f64) { "  OVER" } else { "" };
    let budget = budget.map_or("-".into(), |s| s.to_string());
    let number = |get: fn(&Counts) -> usize| stage.counts.as_ref().map_or("-".into(), |c| get(c).to_string());
    let (passed, failed) = (number(|c| c.passed), number(|c| c.failed));
    format!("{:24}{:9.1}{budget:>9}{passed:>8}{failed:>8}{over}\n", stage.name, stage.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_preparation_ends_the_run_and_a_failed_stage_does_not() {
        let mut stages = Stages::default();
        assert_eq!(stages.prepare("build", || Err::<(), _>("no compiler".into())), Err("build: no compiler".into()));
        stages.count("vectors", || Err("no python".into()));
        stages.count("core, ABI, text", || Ok(Counts { passed: 5, failed: 0 }));
        assert_eq!(stages.total(), Counts { passed: 5, failed: 1 });
        let table = stages.table();
        assert!(table.contains("540") && table.lines().count() == 4, "{table}");
    }

    #[test]
    fn a_stage_over_its_budget_is_marked() {
        let stage = |name, seconds| Stage { name, seconds, counts: None };
        let stages = Stages(vec![
            stage("build", 540.0),
            stage("kernels", 120.5),
            stage("emulated", 240.0),
            stage("vectors", 9999.0),
        ]);
        let table = stages.table();
        let over: Vec<&str> = table.lines().filter(|l| l.ends_with("  OVER")).map(|l| &l[..24]).collect();
        // Both of the pair together as well; a stage without a budget is never over one.
        assert_eq!(
            over.iter().map(|name| name.trim()).collect::<Vec<_>>(),
            ["kernels", "kernels + emulated"],
            "{table}"
        );
    }

    #[test]
    fn kernels_and_what_executes_them_have_a_budget_together() {
        let stage = |name, seconds, passed| Stage { name, seconds, counts: Some(Counts { passed, failed: 0 }) };
        let stages =
            Stages(vec![stage("kernels", 100.0, 1), stage("simulation", 9.0, 5), stage("emulated", 200.5, 300)]);
        let table = stages.table();
        let last: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["kernels", "+", "emulated", "300.5", "360", "301", "0"], "{table}");
        // The sum is of lines that are there already.
        assert_eq!(stages.total(), Counts { passed: 306, failed: 0 });
    }
}
