//! [`Facts`]: what plans may take for granted of sizes that are names, and what they have asked.
//!
//! Compiled code is special to a *class* of sizes, never to a size. A class is what was asked here
//! while the plans were made: a question is answered by the bounds of names or by the form of an
//! expression, which makes no class, else by the value at hand, and is written down with its
//! answer. Code fits every set of sizes that gives the same answers ([`Answer::fits`]). Only the
//! first is needed for right bits; a question that need not be asked is not.
//!
//! | question | asked by |
//! |---|---|
//! | has a row that is reduced fewer than 16 positions | `classes`: it is combined in order |
//! | in how much room do positions of a row fit, of 64, 256, 1024, 4096, … | `classes`, `widen_once`, `strided`: buffers in the scratch |
//! | is an index an i32 | `affine`, `argmax` |
//! | has a guarded operand as many elements as the row has | `classes` |
//! | does it go over less than a cache holds | `clif::choices` |

use super::numbers::Numbers;
use std::cell::RefCell;
use std::fmt;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::{Claim, NamedSize, Number, Relation, Size, Sizes, Values};

/// A question about sizes, and what the answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Answer {
    /// What was asked.
    pub(crate) claim: Claim,
    /// The answer.
    pub(crate) holds: bool,
}

impl Answer {
    /// True if these sizes give the same answer.
    pub(crate) fn fits(&self, sizes: &Numbers<'_>) -> bool {
        let Claim { left, relation, right } = self.claim;
        match (sizes.number(left), sizes.number(right)) {
            (Ok(left), Ok(right)) => Claim::holds(relation, left, right) == self.holds,
            _ => false,
        }
    }
}

impl fmt::Display for Answer {
    /// `16 >= length: no`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.claim, if self.holds { "yes" } else { "no" })
    }
}

/// Positions that a row buffer holds, if the row has a name without a small bound.
const CAPACITIES: [i64; 4] = [64, 256, 1024, 4096];

/// What is known of the sizes of a kernel, and what has been asked so far.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The names with their bounds; the traced value of each is the value at hand.
    sizes: Sizes,
    asked: RefCell<Vec<Answer>>,
    /// The arguments of the kernel that are sizes.
    arguments: Vec<Option<Size>>,
}

impl Facts {
    /// What is known of a kernel whose names have these values.
    ///
    /// # Errors
    /// If a name has no value, or one outside of its bounds.
    pub(crate) fn of(kernel: &Kernel, values: &Values) -> Result<Facts, String> {
        let mut sizes = Sizes::default();
        for name in &kernel.names {
            let hint = values.get(name.name);
            let hint = hint.ok_or_else(|| format!("`{}` has no value", name.name))?;
            sizes.declare(NamedSize { hint, ..name.clone() })?;
        }
        let arguments = kernel.arguments.iter().map(|argument| match argument {
            Number::Size(size) => Some(*size),
            Number::F64(_) | Number::Ratio(..) => None,
        });
        Ok(Facts { sizes, asked: RefCell::default(), arguments: arguments.collect() })
    }

    /// Whether something holds by bounds and form, for all values. Not a question.
    pub(crate) fn proves(&self, claim: Claim) -> bool {
        self.sizes.proves(claim)
    }

    /// Whether something holds: by bounds and form, else for the value at hand, which makes a class
    /// of sizes.
    pub(crate) fn asks(&self, claim: Claim) -> bool {
        if self.proves(claim) {
            return true;
        }
        let Claim { left, relation, right } = claim;
        let never = match relation {
            Relation::AtLeast => self.proves(right.at_least(left + 1)),
            Relation::Equal | Relation::Divides => false,
        };
        if never || !(left.has_names() || right.has_names()) {
            return false;
        }
        let mut asked = self.asked.borrow_mut();
        if let Some(known) = asked.iter().find(|known| known.claim == claim) {
            return known.holds;
        }
        let holds = self.sizes.holds_for_hints(claim);
        asked.push(Answer { claim, holds });
        holds
    }

    /// A number that the size never exceeds: itself, or a bound of at most 4096, or the next of 64,
    /// 256, 1024, 4096, 16384, … above the value at hand.
    pub(crate) fn capacity(&self, size: Size) -> i64 {
        if let Some(number) = size.number() {
            return number;
        }
        let fits = |capacity: &i64| Size::from(*capacity).at_least(size);
        if let Some(bound) = CAPACITIES.into_iter().find(|capacity| self.proves(fits(capacity))) {
            return bound;
        }
        let capacities =
            std::iter::successors(Some(CAPACITIES[0]), |capacity| capacity.checked_mul(4));
        capacities
            .take_while(|capacity| *capacity <= Size::MAX)
            .find(|capacity| self.asks(fits(capacity)))
            .unwrap_or(Size::MAX)
    }

    /// The most that a size is known to be without a question: itself, or a bound of at most 4096.
    pub(crate) fn most(&self, size: Size) -> Option<i64> {
        size.number().or_else(|| {
            let fits = |most: &i64| self.proves(Size::from(*most).at_least(size));
            [16].into_iter().chain(CAPACITIES).find(fits)
        })
    }

    /// What an integer argument of the kernel is, by number.
    pub(crate) fn arguments(&self) -> &[Option<Size>] {
        &self.arguments
    }

    /// The questions so far, with their answers, in the order in which they were asked first.
    pub(crate) fn asked(&self) -> Vec<Answer> {
        self.asked.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(most: Option<i64>, hint: i64) -> (Facts, Size) {
        let mut sizes = Sizes::default();
        sizes.declare(NamedSize { name: "n", least: 0, most, hint }).unwrap();
        (Facts { sizes, asked: RefCell::default(), arguments: Vec::new() }, Size::named("n"))
    }

    #[test]
    fn bounds_and_form_answer_without_a_question() {
        let (facts, n) = facts(Some(60), 7);
        assert!(facts.asks(Size::from(64).at_least(n)));
        assert!(!facts.asks(n.at_least(61)));
        assert!(facts.asks((n * 16).multiple_of(16)));
        assert!(!facts.asks(Size::from(3).at_least(4)));
        assert_eq!((facts.capacity(n), facts.most(n)), (64, Some(64)));
        assert!(facts.asked().is_empty());
    }

    #[test]
    fn what_only_the_value_answers_is_written_down_once() {
        let (facts, n) = facts(None, 300);
        assert!(!facts.asks(Size::from(16).at_least(n)));
        assert_eq!((facts.capacity(n), facts.capacity(n), facts.most(n)), (1024, 1024, None));
        let asked: Vec<String> = facts.asked().iter().map(ToString::to_string).collect();
        assert_eq!(asked, ["16 >= n: no", "64 >= n: no", "256 >= n: no", "1024 >= n: yes"]);
        let fits = |n| {
            let values: Values = [("n", n)].into_iter().collect();
            facts.asked().iter().all(|answer| answer.fits(&Numbers::new(&values)))
        };
        assert_eq!([256, 257, 1024, 1025].map(fits), [false, true, true, false]);
    }
}
