//! `tokenspeed-sim [--from SEED] [--seeds N] [--minutes M] [--jobs J]`: what `cargo xtask sim` runs. `--bug NAME` looks
//! for a seeded bug instead and says how long that took.
#![forbid(unsafe_code)]

use std::{process::ExitCode, time::Duration};

use tokenspeed_sim::campaign::{Campaign, explain};

const USAGE: &str = "usage: tokenspeed-sim [--from SEED] [--seeds N] [--minutes M] [--jobs J] [--bug NAME]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Ok((campaign, None)) => run(&campaign),
        Ok((campaign, Some(bug))) => look_for(&bug, &campaign),
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<(Campaign, Option<String>), String> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut campaign = Campaign { from: 0, seeds: 1000, time: None, jobs };
    let (mut seeds_given, mut bug) = (false, None);
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { return Err(format!("`{}` needs a value", pair[0])) };
        let wrong = || format!("`{key} {value}`: expected a number");
        match key.as_str() {
            "--from" => campaign.from = value.parse().map_err(|_| wrong())?,
            "--seeds" => (campaign.seeds, seeds_given) = (value.parse().map_err(|_| wrong())?, true),
            "--jobs" => campaign.jobs = value.parse().map_err(|_| wrong())?,
            "--bug" => bug = Some(value.clone()),
            "--minutes" => {
                let minutes: f64 = value.parse().map_err(|_| wrong())?;
                campaign.time = Some(Duration::try_from_secs_f64(minutes * 60.0).map_err(|_| wrong())?);
            }
            _ => return Err(format!("unknown option `{key}`")),
        }
    }
    if campaign.time.is_some() && !seeds_given {
        campaign.seeds = u64::MAX;
    }
    Ok((campaign, bug))
}

#[cfg(debug_assertions)]
fn look_for(name: &str, campaign: &Campaign) -> ExitCode {
    use tokenspeed_core::bug::Bug;
    use tokenspeed_sim::hunt::hunt;
    let Some(bug) = Bug::ENGINE.iter().find(|bug| bug.name() == name) else {
        let names: Vec<&str> = Bug::ENGINE.iter().map(|bug| bug.name()).collect();
        eprintln!("there is no bug `{name}`; there are {}", names.join(", "));
        return ExitCode::FAILURE;
    };
    match hunt(*bug, campaign.from, campaign.seeds) {
        Some(found) => {
            println!("{name} is found by seed {} ({} seeds): {}", found.seed, found.seeds, found.failure);
            ExitCode::SUCCESS
        }
        None => {
            println!("{name} is not found in {} seeds", campaign.seeds);
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(debug_assertions))]
fn look_for(_name: &str, _campaign: &Campaign) -> ExitCode {
    eprintln!("this build has no seeded bugs; build it with debug assertions");
    ExitCode::FAILURE
}

fn run(campaign: &Campaign) -> ExitCode {
    let report = campaign.run();
    let seconds = report.elapsed.as_secs_f64();
    println!(
        "seeds {}..{}: {} run in {seconds:.1} s on {} threads, {:.0} a second",
        campaign.from,
        campaign.from.saturating_add(report.seeds),
        report.seeds,
        campaign.jobs,
        report.seeds as f64 / seconds.max(1e-9)
    );
    println!("{:?}", report.tally);
    match report.failure {
        None => {
            println!("no failure");
            ExitCode::SUCCESS
        }
        Some((seed, failure)) => {
            println!("{}", explain(seed, &failure));
            ExitCode::FAILURE
        }
    }
}
