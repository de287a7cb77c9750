//! The handwritten digits that come with the tool, decoded from the compressed table in `data/`.
//!
//! A row of the table is 64 pixels of an 8 × 8 image, whole numbers from 0 to 16, and the digit it
//! shows. Pixels are divided by 16, so features lie between 0 and 1. Where the data comes from is
//! said in `data/README.md`.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::dataset::{Dataset, DatasetError};

const TABLE: &[u8] = include_bytes!("../data/digits.csv.gz");

const ROWS: usize = 1797;
const PIXELS: usize = 64;
const CLASSES: i64 = 10;
const BRIGHTEST: u8 = 16;

/// All 1,797 digits, in the order of the table.
///
/// # Errors
///
/// If the embedded table is not the one described above.
pub(crate) fn load() -> Result<Dataset, DatasetError> {
    let mut table = String::new();
    GzDecoder::new(TABLE).read_to_string(&mut table).map_err(DatasetError::Archive)?;
    let digits = parse(&table)?;
    if digits.len() != ROWS {
        return Err(DatasetError::Rows(format!(
            "the digits have {} rows, expected {ROWS}",
            digits.len()
        )));
    }
    Ok(digits)
}

fn parse(table: &str) -> Result<Dataset, DatasetError> {
    let mut features = Vec::with_capacity(ROWS * PIXELS);
    let mut labels = Vec::with_capacity(ROWS);
    for (row, line) in table.lines().enumerate() {
        let wrong = |reason: &str| DatasetError::Rows(format!("row {row} of the digits: {reason}"));
        let mut numbers = Vec::with_capacity(PIXELS + 1);
        for field in line.split(',') {
            numbers
                .push(field.parse::<u8>().map_err(|error| wrong(&format!("`{field}`: {error}")))?);
        }
        let Some((&label, pixels)) =
            numbers.split_last().filter(|(_, pixels)| pixels.len() == PIXELS)
        else {
            return Err(wrong(&format!(
                "expected {} numbers, found {}",
                PIXELS + 1,
                numbers.len()
            )));
        };
        if i64::from(label) >= CLASSES || pixels.iter().any(|&pixel| pixel > BRIGHTEST) {
            return Err(wrong("a pixel is above 16 or the digit above 9"));
        }
        features.extend(pixels.iter().map(|&pixel| f32::from(pixel) / f32::from(BRIGHTEST)));
        labels.push(i64::from(label));
    }
    Dataset::new(features, labels, PIXELS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_digits_are_complete() {
        let digits = load().unwrap();
        assert_eq!((digits.len(), digits.width, digits.classes), (1797, 64, 10));
        assert!(digits.features.iter().all(|value| (0.0..=1.0).contains(value)));
        assert_eq!(digits.features[2..5], [5.0 / 16.0, 13.0 / 16.0, 9.0 / 16.0]);
        assert_eq!(digits.labels[..5], [0, 1, 2, 3, 4]);
        let mut counts = [0; 10];
        digits.labels.iter().for_each(|&label| counts[label as usize] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn the_split_is_the_documented_one() {
        let split = load().unwrap().split();
        assert_eq!((split.train.len(), split.test.len()), (1438, 359));
    }

    #[test]
    fn malformed_rows_are_named() {
        let row = |last: &str| format!("{}{last}\n", "0,".repeat(64));
        let message = |table: String| parse(&table).unwrap_err().to_string();
        assert!(parse(&row("3").repeat(5)).is_ok());
        assert!(message(row("3") + &row("10")).contains("row 1"));
        assert!(message("17,".repeat(64) + "0").contains("above 16"));
        assert!(message(row("x")).contains("`x`"));
        assert!(message("1,2,3".into()).contains("expected 65 numbers, found 3"));
    }
}
