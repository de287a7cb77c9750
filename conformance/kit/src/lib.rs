//! Holds a device to what programs mean: [`check`] runs small programs on it and on the
//! interpreter, and reports which of them pass.
//!
//! Most cases are data (`cases/*.tc`, and the samples of the op table): a text program, inputs, and
//! how closely results must agree.
//! The interpreter gives the expected values. Decisions of autocast, dtypes, the state of the loss
//! scaler and everything without sums or functions must agree exactly; sums and functions have a
//! tolerance.
//! What no text can say (memory, threads, sizes, the scaler of a whole step) is in `checks`.
//!
//! A case that fails comes with the smallest program of it that fails alone. A device that hangs or
//! panics fails the case, and the others go on.
//!
//! ```
//! use std::sync::Arc;
//! use tracecast_conformance::{Level, check};
//! use tracecast_runtime::Registry;
//!
//! let report = check(&Arc::new(Registry::new()), "reference", Level::Maps);
//! assert!(report.passes(), "{report}");
//! ```

mod case;
mod checked;
mod checks;
mod compare;
mod kit;
mod level;
mod numbers;
mod report;
mod run;
mod scaler;
mod shrink;
mod subject;
mod table;
mod watch;

pub use kit::{Current, Kit};
pub use level::Level;
pub use report::{CaseReport, Outcome, Report, difference};

use std::sync::Arc;
use subject::Subject;
use tracecast_runtime::Registry;

/// A check by code.
struct Check {
    name: &'static str,
    level: Level,
    run: fn(&Subject, &Kit) -> Outcome,
}

/// All of them.
const CHECKS: [Check; 9] = [
    Check { name: "memory/comes_back", level: Level::Maps, run: checks::memory },
    Check { name: "memory/replaced_parameter", level: Level::Maps, run: checks::replaced },
    Check { name: "threads/do_not_mix", level: Level::Maps, run: checks::threads },
    Check { name: "sizes/are_names", level: Level::Mlp, run: checks::sizes },
    Check { name: "autocast/lists", level: Level::Mlp, run: checks::lists },
    Check { name: "autocast/default_dtype", level: Level::Mlp, run: checks::default_dtype },
    Check { name: "scaler/whole_steps", level: Level::Mlp, run: scaler::whole_steps },
    Check { name: "scaler/skipped_steps_change_nothing", level: Level::Mlp, run: scaler::skipped },
    Check { name: "scaler/call_by_call", level: Level::Mlp, run: scaler::call_by_call },
];

impl Kit {
    /// Checks a device of a registry, or `cpu` or `reference`.
    pub fn check(&self, registry: &Arc<Registry>, device: &str) -> Report {
        let subject = Subject { registry: registry.clone(), device: device.to_owned() };
        let (cases, mut reports) = (case::written().into_iter().chain(table::all()), Vec::new());
        let mut hangs = 0;
        for case in cases.filter(|case| case.level <= self.level) {
            let (subject, name) = (subject.clone(), case.name.clone());
            let body = move || run::run(&case, &subject);
            reports.push(watch::watched(&name, self, &mut hangs, Box::new(body)));
        }
        for check in CHECKS.iter().filter(|check| check.level <= self.level) {
            let (subject, kit) = (subject.clone(), self.clone());
            let run = check.run;
            let body = move || run(&subject, &kit);
            reports.push(watch::watched(check.name, self, &mut hangs, Box::new(body)));
        }
        Report { device: device.to_owned(), level: self.level, cases: reports }
    }
}

/// Checks a device of a registry, or `cpu` or `reference`, with all cases up to a level.
pub fn check(registry: &Arc<Registry>, device: &str, level: Level) -> Report {
    Kit::new(level).check(registry, device)
}
