//! The parts of a file: version, commands, devices, regions, graphs.

use super::cursor::{Cursor, shorten};
use super::devices::Devices;
use super::lexer::Kind;
use super::{File, Reading, VERSION, record, size};
use crate::policy::Region;
use crate::{Graph, ParseError, Sizes};
use std::collections::HashMap;

/// What stands at the head of a file, for the graphs behind it.
#[derive(Default)]
pub(super) struct Head {
    pub(super) devices: Devices,
    pub(super) regions: Regions,
    pub(super) sizes: Sizes,
}

impl Head {
    /// Reads the next line, if it is one of a head.
    fn accept(
        &mut self,
        cursor: &mut Cursor<'_>,
        reading: &Reading<'_>,
    ) -> Result<bool, ParseError> {
        if cursor.at_word("device") {
            self.devices.declaration(cursor, reading.options)?;
        } else if cursor.at_word("region") {
            region(cursor, self, reading)?;
        } else if cursor.at_word("size") {
            size::declaration(cursor, &mut self.sizes, reading.options.file.as_deref())?;
        } else if cursor.at_word("guard") {
            size::guard(cursor, &mut self.sizes)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// The regions of a file by the number behind `#`, and in the order of the text.
#[derive(Default)]
pub(super) struct Regions {
    by_number: HashMap<u32, usize>,
    in_order: Vec<Region>,
}

impl Regions {
    /// The region of that number; 0 is the state with everything off.
    pub(super) fn get(&self, number: u32) -> Option<Region> {
        match self.by_number.get(&number) {
            Some(&at) => Some(self.in_order[at].clone()),
            None => (number == 0).then(Region::default),
        }
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.in_order.iter()
    }

    fn insert(&mut self, number: u32, region: Region) -> Result<(), String> {
        if number == 0 {
            return Err(
                "region #0 is the state with everything off: number yours from 1".to_owned()
            );
        }
        if self.by_number.insert(number, self.in_order.len()).is_some() {
            return Err(format!("there is a region #{number} already"));
        }
        self.in_order.push(region);
        Ok(())
    }
}

/// Reads a whole file.
pub(super) fn file(text: &str, reading: &Reading<'_>) -> Result<File, ParseError> {
    let mut cursor = Cursor::new(text);
    let mut file = File::default();
    let mut head = Head::default();
    version(&mut cursor)?;
    while cursor.peek().kind != Kind::End {
        if cursor.at_word("test") {
            file.commands.push(cursor.take_line().text.to_owned());
        } else if cursor.at_word("graph") {
            file.graphs.push(record::graph(&mut cursor, reading, &head)?);
        } else if !head.accept(&mut cursor, reading)? {
            return Err(stray(&cursor));
        }
    }
    Ok(file)
}

/// Reads a file that has one graph.
pub(super) fn one_graph(text: &str, reading: &Reading<'_>) -> Result<Graph, ParseError> {
    let mut cursor = Cursor::new(text);
    let mut head = Head::default();
    version(&mut cursor)?;
    loop {
        if cursor.at_word("test") {
            cursor.take_line();
        } else if cursor.at_word("graph") {
            break;
        } else if !head.accept(&mut cursor, reading)? {
            return Err(stray(&cursor));
        }
    }
    let graph = record::graph(&mut cursor, reading, &head)?;
    if cursor.peek().kind == Kind::End {
        Ok(graph)
    } else {
        Err(cursor.unexpected("nothing after the graph"))
    }
}

/// `tracecast 1`, which may be left out.
fn version(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    if !cursor.accept_word("tracecast") {
        return Ok(());
    }
    let token = cursor.take_kind(Kind::Number, "the version of the text")?;
    if token.text == VERSION.to_string() {
        return Ok(());
    }
    Err(cursor.fail(
        token,
        format!(
            "this text is of version {}, and {VERSION} is the only one known",
            shorten(token.text)
        ),
    ))
}

/// `region #1 = {cpu: bf16} cache on scope 1`, on one line.
fn region(
    cursor: &mut Cursor<'_>,
    head: &mut Head,
    reading: &Reading<'_>,
) -> Result<(), ParseError> {
    cursor.take();
    cursor.expect('#', "and a number behind `region`")?;
    let number_at = cursor.peek();
    let number = cursor.take_number("the number of a region")?;
    if !cursor.at('=') {
        return Err(cursor.unexpected("`=` and the region"));
    }
    let line = cursor.take_line();
    let text = head.devices.in_types(line.text, reading.options);
    let region = Region::parse(&text).map_err(|error| cursor.fail(line, error.to_string()))?;
    head.regions.insert(number, region).map_err(|message| cursor.fail(number_at, message))
}

/// What stands where a graph could.
fn stray(cursor: &Cursor<'_>) -> ParseError {
    if cursor.at_word("kernel") {
        return cursor.fail(
            cursor.peek(),
            "kernels are printed but not read: give the graph as it is before `fuse`",
        );
    }
    if cursor.at_word("tracecast") {
        return cursor.fail(cursor.peek(), "the version stands once, at the very beginning");
    }
    cursor.unexpected("`graph`, `region` or `test`")
}
