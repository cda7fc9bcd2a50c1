//! Counts what the kernels of a Kimi K3 rank do on the emulator and prints the table of `docs/performance.md`, "MI355X kernels,
//! by count": `cargo bench -p tokenspeed-amd-gfx950 --profile dev --bench modelled [-- TEXT…]`, where TEXT selects rows and `--launches`
//! lists the launches of each on standard error, `--best` leaves the portable kernels out. It ends with an error if specialised kernels
//! move more than 1.15 of the floor in a step that memory bounds, spill, or miss a limit of `limits.rs`: no part of CI, which it would take minutes of. Needs the emulator
//! (`cargo build -p tokenspeed-emulator`) and the kernels (`cargo xtask kernels`) of the same target folder.
//!
//! Each row runs ops of the catalogue through the backend's own planner, once with the best kernels and once with
//! `kernels=portable`, so that launches, grids and arguments are those of serving. Operands are zeros but for tables, routes and
//! the step: counts do not depend on values. Rejected: launching kernels by name with arguments written here, which
//! would be a second planner that nobody keeps in step with the first.
//!
//! Large rows are sampled: work-groups at a few coordinates per axis run, and sums are scaled (`tokenspeedEmulatorSample`).
//! Kernels that others depend on (sorting of routes, dealing of attention work) always run whole. Rows whose addresses depend on
//! no product run whole instead, with products left out, behind a model of the memory-side cache (`tokenspeedEmulatorHollow`).

#[path = "../../tests/emulated/find.rs"]
mod find;
mod launches;
mod limits;
mod op;
mod rows;
mod run;
mod table;

fn main() {
    let selected: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |title: &str| selected.is_empty() || selected.iter().any(|s| title.contains(s.as_str()));
    let flag = |name: &str| std::env::args().any(|a| a == name);
    let session = match run::Session::new(flag("--launches"), flag("--best")) {
        Ok(session) => session,
        Err(why) => {
            eprintln!("modelled: {why}");
            std::process::exit(1);
        }
    };
    println!("{}", table::HEAD);
    let mut problems = Vec::new();
    let all = rows::all().into_iter().map(|row| (row, table::KERNELS));
    let rows = all.chain(rows::expanded(&rows::CACHES, "").into_iter().map(|row| (row, table::FORMS)));
    // Formats differ only where keys and values are made.
    let expanded = rows::expanded(&rows::CACHES[1..], ", expanded");
    let rows = rows.chain(expanded.into_iter().map(|row| (row, table::EXPANDED_FACTORS)));
    let rows = rows.chain(rows::gate_up().into_iter().map(|row| (row, table::PARTS)));
    let rows = rows.chain(rows::quantised().into_iter().map(|row| (row, table::FACTORS)));
    for (row, sets) in rows.filter(|(row, _)| wanted(&row.title)) {
        match session.measure(&row, &sets) {
            Ok((lines, found)) => {
                print!("{lines}");
                problems.extend(found);
            }
            Err(why) => {
                eprintln!("modelled: {}: {why}", row.title);
                std::process::exit(1);
            }
        }
    }
    for problem in &problems {
        eprintln!("over the gate: {problem}");
    }
    if !problems.is_empty() {
        std::process::exit(1);
    }
}
