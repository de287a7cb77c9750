//! The expressions that programs of this process contain, each once. The table grows with programs,
//! not with runs, and nothing in it moves or goes away, so a size is a place in it and is copied
//! like a number.

use super::Size;
use super::polynomial::Polynomial;
use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, PoisonError, RwLock};

#[derive(Default)]
struct Table {
    polynomials: Vec<&'static Polynomial>,
    places: HashMap<&'static Polynomial, usize>,
    names: HashSet<&'static str>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// The size that is this polynomial: a number if it has no names.
pub(super) fn place_of(polynomial: Polynomial) -> Size {
    if let Some(number) = polynomial.as_number() {
        return Size::of_number(Some(number));
    }
    let known = |table: &Table| table.places.get(&polynomial).copied();
    let found = known(&TABLE.read().unwrap_or_else(PoisonError::into_inner));
    let place = found.unwrap_or_else(|| {
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        known(&table).unwrap_or_else(|| {
            let place = table.polynomials.len();
            let kept: &'static Polynomial = Box::leak(Box::new(polynomial.clone()));
            table.polynomials.push(kept);
            table.places.insert(kept, place);
            place
        })
    });
    Size((place as u64) << 1 | super::PLACE)
}

/// The polynomial at a place.
pub(super) fn at(place: usize) -> &'static Polynomial {
    TABLE.read().unwrap_or_else(PoisonError::into_inner).polynomials[place]
}

/// The name, as it is kept.
pub(super) fn name(name: &str) -> &'static str {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = table.names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.into());
    table.names.insert(kept);
    kept
}
