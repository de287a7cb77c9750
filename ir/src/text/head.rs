//! [`Head`]: the devices, regions, sizes and guards that a file declares before its graphs.

use super::cursor::Cursor;
use super::devices::Devices;
use super::options::Reading;
use super::size;
use crate::policy::Region;
use crate::{ParseError, Sizes};
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
    pub(super) fn accept(
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
