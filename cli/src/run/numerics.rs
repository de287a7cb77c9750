//! `tracecast run --check-finite` and `--stats`: what the numbers of a program are like.

use std::io::Write;

use serde_json::{Value, json};
use tracecast::numerics::{NonFinite, Numbers, Place, Stats, check_finite, stats};
use tracecast::{Graph, Options, Store, Tensor};

use crate::failure::Failure;

/// What is asked about the numbers of a program.
#[derive(clap::Args)]
pub(super) struct Look {
    /// Tells which op makes the first inf or NaN, with its line and the range of its operands; then
    /// the exit code is 1. For this the program runs op by op in the interpreter
    #[arg(long)]
    check_finite: bool,

    /// Tells for each value and each dtype the range of its numbers, and the shares that are zero,
    /// subnormal, close to overflow, inf or NaN. For this the program runs op by op in the
    /// interpreter
    #[arg(long)]
    stats: bool,

    /// Prints what --check-finite and --stats tell as one JSON object
    #[arg(long)]
    json: bool,
}

impl Look {
    /// Whether anything is.
    pub(super) fn is_asked(&self) -> bool {
        self.check_finite || self.stats
    }

    /// Runs the program op by op, if something is asked; writes the answers. Returns how many ops
    /// have made an inf or a NaN.
    pub(super) fn execute(
        &self,
        graph: &Graph,
        options: &Options,
        store: &Store,
        inputs: &[(&str, &Tensor)],
        out: &mut impl Write,
    ) -> Result<usize, Failure> {
        if self.json && !self.is_asked() {
            let message = "--json goes with --check-finite or --stats";
            return Err(Failure::Usage(message.to_owned()));
        }
        let (mut found, mut counted) = (None, None);
        if self.check_finite {
            found = Some(check_finite(graph, options, store, inputs)?);
        }
        if self.stats {
            counted = Some(stats(graph, options, store, inputs)?);
        }
        if self.json {
            let mut told = json!({ "program": graph.name() });
            if let Some(found) = &found {
                told["not_finite"] = found.iter().map(nonfinite).collect();
            }
            if let Some(counted) = &counted {
                told["values"] = values(counted);
                told["dtypes"] = dtypes(counted);
            }
            writeln!(out, "{told}")?;
        } else {
            match found.as_deref() {
                Some([]) => writeln!(out, "no op of @{} makes an inf or a NaN", graph.name())?,
                Some(found) => found.iter().try_for_each(|found| writeln!(out, "{found}"))?,
                None => {}
            }
            if let Some(counted) = &counted {
                write!(out, "{counted}")?;
            }
        }
        Ok(found.map_or(0, |found| found.len()))
    }
}

/// A number; JSON has none for infinities and NaN, which are texts.
fn number(number: f64) -> Value {
    if number.is_finite() {
        number.into()
    } else if number.is_nan() {
        "nan".into()
    } else {
        number.to_string().into()
    }
}

fn nonfinite(found: &NonFinite) -> Value {
    let operands = found.operands.iter().map(|operand| {
        json!({
            "place": place(&operand.place),
            "type": operand.ty.to_string(),
            "numbers": numbers(&operand.numbers),
            "there": operand.there.map(number),
        })
    });
    json!({
        "place": place(&found.place),
        "type": found.ty.to_string(),
        "first": number(found.first),
        "position": found.position,
        "numbers": numbers(&found.numbers),
        "operands": operands.collect::<Vec<_>>(),
    })
}

fn values(stats: &Stats) -> Value {
    let values = stats.values.iter().map(|value| {
        json!({
            "place": place(&value.place),
            "type": value.ty.to_string(),
            "numbers": numbers(&value.numbers),
        })
    });
    values.collect()
}

fn dtypes(stats: &Stats) -> Value {
    let dtypes = stats.dtypes();
    dtypes.iter().map(|(dtype, counted)| (dtype.to_string(), numbers(counted))).collect()
}

fn numbers(numbers: &Numbers) -> Value {
    json!({
        "count": numbers.count,
        "least": numbers.range.map(|(least, _)| least),
        "largest": numbers.range.map(|(_, largest)| largest),
        "smallest_above_zero": numbers.smallest,
        "zeros": numbers.zeros,
        "subnormal": numbers.subnormal,
        "near_overflow": numbers.near_overflow,
        "not_finite": numbers.nonfinite,
    })
}

fn place(place: &Place) -> Value {
    json!({
        "value": place.value,
        "op": place.op,
        "part_of": place.part_of,
        "backward": place.backward,
        "module": place.scope,
        "source": place.source,
    })
}
