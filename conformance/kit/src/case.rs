//! Cases as data: a text program after lines that give its name, level and tolerance.

use crate::compare::Agreement;
use crate::level::Level;

/// A program, and how it is run.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Section and name.
    pub(crate) name: String,
    pub(crate) level: Level,
    pub(crate) agreement: Agreement,
    /// True if each run is a data error, which leaves the state as it was.
    pub(crate) raises: bool,
    /// How many runs there are, with other random inputs in each.
    pub(crate) steps: u64,
    /// The inputs that are not random.
    pub(crate) inputs: Vec<(String, Vec<f64>)>,
    /// The program; `DEVICE` and `LOW` stand for the device type and its low dtype.
    pub(crate) text: String,
}

impl Case {
    /// One run of nothing yet, within the tolerance.
    pub(crate) fn new(name: String, level: Level) -> Self {
        let (inputs, text) = (Vec::new(), String::new());
        Case { name, level, agreement: Agreement::Functions, raises: false, steps: 1, inputs, text }
    }
}

const FILES: [&str; 3] = [
    include_str!("../cases/maps.tc"),
    include_str!("../cases/training.tc"),
    include_str!("../cases/amp.tc"),
];

/// The cases of the files, in their order.
pub(crate) fn written() -> Vec<Case> {
    let blocks = FILES.iter().flat_map(|file| file.split("; case ").skip(1));
    let read = |block| read(block).unwrap_or_else(|why| panic!("{why} in {block}"));
    blocks.map(read).collect()
}

fn read(block: &str) -> Result<Case, String> {
    let mut case = Case::new(String::new(), Level::Everything);
    for (number, line) in block.lines().enumerate() {
        if number == 0 {
            case.name = line.trim().to_owned();
            continue;
        }
        let Some(fact) = line.strip_prefix("; ") else {
            case.text += line;
            case.text.push('\n');
            continue;
        };
        match fact.split_once(' ').unwrap_or((fact, "")) {
            ("exact", _) => case.agreement = Agreement::Exact,
            ("sums", _) => case.agreement = Agreement::Sums,
            ("raises", _) => case.raises = true,
            ("level", level) => case.level = level.parse()?,
            ("steps", steps) => case.steps = steps.parse().map_err(|_| "`steps` is no number")?,
            ("input", input) => case.inputs.push(values(input)?),
            (other, _) => return Err(format!("unknown fact `{other}`")),
        }
    }
    Ok(case)
}

/// `x = [1, -2.5, inf]`
fn values(text: &str) -> Result<(String, Vec<f64>), String> {
    let bad = || format!("expected NAME = [NUMBERS], found `{text}`");
    let (name, list) = text.split_once(" = ").ok_or_else(bad)?;
    let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).ok_or_else(bad)?;
    let numbers = list.split(", ").map(|number| number.parse().map_err(|_| bad()));
    Ok((name.to_owned(), numbers.collect::<Result<_, _>>()?))
}
