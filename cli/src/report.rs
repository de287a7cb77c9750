//! What a training run comes to: one row of the table, one line of JSON.

use serde_json::Value;

/// What training in one precision came to.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The name of the precision.
    pub(crate) mode: &'static str,
    /// Of the rows held out, in percent.
    pub(crate) accuracy: f64,
    /// The median time of a step, in milliseconds.
    pub(crate) median_step_ms: f64,
    /// The time from the closure to the loaded step, in milliseconds.
    pub(crate) compile_ms: f64,
    /// Kernels in a step.
    pub(crate) kernels: usize,
    /// Kernels that do nothing but cast.
    pub(crate) standalone_casts: usize,
    /// Bytes that the forward part keeps for the backward part.
    pub(crate) saved_bytes: usize,
    /// Steps that changed nothing because a gradient was not finite.
    pub(crate) skipped_steps: usize,
    /// The scale of the loss after the last step, if it was scaled.
    pub(crate) final_scale: Option<f64>,
    /// The loss of each step.
    pub(crate) losses: Vec<f64>,
    /// Steps in an epoch.
    pub(crate) steps_per_epoch: usize,
    /// What ranks exchanged, if there were several.
    pub(crate) exchanged: Option<Exchanged>,
}

/// What the ranks of a training have exchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchanged {
    /// How many there were.
    pub(crate) ranks: usize,
    /// The bytes that each of them gave in a step.
    pub(crate) bytes: usize,
    /// The median time that a step waited for others, in milliseconds.
    pub(crate) waited_ms: f64,
}

impl Outcome {
    /// One line of JSON; `losses` are the means of the epochs.
    pub(crate) fn json(&self) -> String {
        let mut fields: Vec<(&str, Value)> = vec![
            ("mode", self.mode.into()),
            ("accuracy", rounded(self.accuracy).into()),
            ("median_step_ms", rounded(self.median_step_ms).into()),
            ("compile_ms", rounded(self.compile_ms).into()),
            ("kernels", self.kernels.into()),
            ("standalone_casts", self.standalone_casts.into()),
            ("saved_bytes", self.saved_bytes.into()),
            ("skipped_steps", self.skipped_steps.into()),
            ("final_scale", self.final_scale.into()),
            ("losses", self.epoch_losses().into()),
        ];
        if let Some(Exchanged { ranks, bytes, waited_ms }) = self.exchanged {
            fields.push(("ranks", ranks.into()));
            fields.push(("reduced_bytes", bytes.into()));
            fields.push(("waited_ms", rounded(waited_ms).into()));
        }
        let fields = fields.iter().map(|(name, value)| format!("\"{name}\":{value}"));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    }

    /// The mean loss of each epoch.
    fn epoch_losses(&self) -> Vec<f64> {
        let mean = |epoch: &[f64]| epoch.iter().sum::<f64>() / epoch.len() as f64;
        self.losses.chunks(self.steps_per_epoch.max(1)).map(mean).collect()
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.mode.to_owned(),
            format!("{:.2}", self.accuracy),
            // A training that was done already takes no step.
            match self.median_step_ms.is_nan() {
                true => "-".to_owned(),
                false => format!("{:.3}", self.median_step_ms),
            },
            format!("{:.1}", self.compile_ms),
            self.kernels.to_string(),
            self.standalone_casts.to_string(),
            self.saved_bytes.to_string(),
            self.skipped_steps.to_string(),
            self.final_scale.map_or_else(|| "-".to_owned(), |scale| scale.to_string()),
        ];
        if let Some(Exchanged { ranks, bytes, waited_ms }) = self.exchanged {
            cells.extend([ranks.to_string(), bytes.to_string(), format!("{waited_ms:.3}")]);
        }
        cells
    }
}

/// To six decimal places: a time in milliseconds to the nanosecond.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// All runs as a table with one row each.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut first = vec![
        "",
        "accuracy",
        "median step",
        "trace + compile",
        "",
        "stand-alone",
        "saved for",
        "skipped",
        "final",
    ];
    let mut second =
        vec!["mode", "%", "ms", "ms", "kernels", "casts", "backward, bytes", "steps", "scale"];
    if outcomes.iter().any(|outcome| outcome.exchanged.is_some()) {
        first.extend(["", "reduced,", "waited,"]);
        second.extend(["ranks", "bytes a step", "ms a step"]);
    }
    let header = [first, second].map(|line| line.into_iter().map(str::to_owned).collect());
    let rows: Vec<Vec<String>> =
        header.into_iter().chain(outcomes.iter().map(Outcome::cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut table = String::new();
    for row in &rows {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

/// The middle of the values, the upper one of two.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mode: &'static str, final_scale: Option<f64>) -> Outcome {
        Outcome {
            mode,
            accuracy: 96.378,
            median_step_ms: 0.0714,
            compile_ms: 31.26,
            kernels: 12,
            standalone_casts: 0,
            saved_bytes: 40960,
            skipped_steps: 2,
            final_scale,
            losses: vec![1.0, 2.0, 4.0, f64::NAN],
            steps_per_epoch: 2,
            exchanged: None,
        }
    }

    #[test]
    fn columns_line_up() {
        let table = table(&[outcome("f32", None), outcome("f16", Some(65536.0))]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[1].starts_with("mode") && lines[1].ends_with("scale"), "{table}");
        assert!(lines[2].ends_with("    -") && lines[3].ends_with("65536"), "{table}");
        assert_eq!((lines[2].len(), lines[1].len()), (lines[3].len(), lines[3].len()), "{table}");
    }

    #[test]
    fn several_ranks_have_columns_of_their_own() {
        let exchanged = Some(Exchanged { ranks: 2, bytes: 4096, waited_ms: 0.25 });
        let outcome = Outcome { exchanged, ..outcome("f32", None) };
        let table = table(std::slice::from_ref(&outcome));
        assert!(
            table.lines().nth(2).is_some_and(|row| row.contains("4096") && row.ends_with("0.250")),
            "{table}"
        );
        assert!(outcome.json().ends_with("\"ranks\":2,\"reduced_bytes\":4096,\"waited_ms\":0.25}"));
    }

    #[test]
    fn json_has_the_means_of_the_epochs() {
        let line = outcome("f32", None).json();
        assert!(
            line.contains("\"losses\":[1.5,null]") && line.contains("\"final_scale\":null"),
            "{line}"
        );
        assert!(!line.contains('\n'));
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[2.0, 1.0])), (2.0, 2.0));
        assert!(median(&[]).is_nan());
    }
}
