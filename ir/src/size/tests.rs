//! Sizes against numbers: what equal form means, and that arithmetic is that of numbers.

use super::*;

/// A generator of numbers, and of expressions beside what they are.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }

    fn leaf(&mut self, values: &[i64; 3]) -> (Size, Option<i64>) {
        match self.below(6) {
            at @ 0..3 => (Size::named(NAMES[at as usize]), Some(values[at as usize])),
            n => (Size::from(n as i64 - 4), Some(n as i64 - 4)),
        }
    }

    /// An expression and its value; `None` if something is divided by zero on the way.
    fn expression(&mut self, values: &[i64; 3], depth: u32, floors: bool) -> (Size, Option<i64>) {
        if depth == 0 {
            return self.leaf(values);
        }
        let (a, x) = self.expression(values, depth - 1, floors);
        let (b, y) = self.leaf(values);
        let of = |f: fn(i64, i64) -> Option<i64>| x.zip(y).and_then(|(x, y)| f(x, y));
        match self.below(if floors { 4 } else { 3 }) {
            0 => (a + b, of(|x, y| Some(x + y))),
            1 => (a - b, of(|x, y| Some(x - y))),
            2 => (a * b, of(|x, y| Some(x * y))),
            _ => (a / b, of(arithmetic::floor_division)),
        }
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn at(size: Size, values: &[i64; 3]) -> Result<i64, String> {
    size.at(&|name| NAMES.iter().position(|known| *known == name).map(|at| values[at]))
}

#[test]
fn expressions_are_worth_what_numbers_give() {
    let mut random = Random(7);
    let mut divided = 0;
    for round in 0..300_000u32 {
        let values = [0; 3].map(|_| random.below(9) as i64);
        let (size, value) = random.expression(&values, round % 6, round % 2 == 0);
        let Some(value) = value else { continue };
        // What a quotient by zero stood in may have cancelled, never the other way round.
        assert_eq!(at(size, &values), Ok(value), "{size} at {values:?}");
        divided += u32::from(size.to_string().contains('/'));
    }
    assert!(divided > 10_000, "{divided}");
}

#[test]
fn sizes_are_equal_if_they_are_for_all_values() {
    let mut random = Random(11);
    let mut equal = 0;
    for _ in 0..60_000 {
        let depth = random.below(4) as u32;
        let (a, _) = random.expression(&[1; 3], depth, false);
        let (b, _) = random.expression(&[1; 3], depth, false);
        let alike = (0..20).all(|_| {
            let values = [0; 3].map(|_| random.below(50) as i64);
            at(a, &values) == at(b, &values)
        });
        assert_eq!(a == b, alike, "{a} and {b}");
        equal += u32::from(alike && a.has_names());
    }
    assert!(equal > 1_000, "{equal}");
}

#[test]
fn the_order_of_making_does_not_show() {
    let [late, early] = ["zz.late", "aa.early"].map(Size::named);
    assert_eq!((late * 2 + early * late + 1).to_string(), "aa.early*zz.late + 2*zz.late + 1");
    assert_eq!((1 + late * early + late + late).to_string(), "aa.early*zz.late + 2*zz.late + 1");
    assert_eq!((5 - late).to_string(), "5 - zz.late");
    assert_eq!((-late - 3).to_string(), "-1*zz.late - 3");
    assert_eq!(((late + 1) / 2 * early).to_string(), "aa.early*((zz.late + 1)/2)");
    assert_eq!((late / 2).to_string(), "zz.late/2");
}

#[test]
fn division_goes_as_far_as_it_goes() {
    let [b, n] = ["b", "n"].map(Size::named);
    assert_eq!((b * n) / b, n);
    assert_eq!((b * n * 6 + 4 * b) / (2 * b), 3 * n + 2);
    assert_eq!((3 * n + 5) / 2, n + 2 + (n + 1) / 2);
    assert_eq!((4 * n + 2) / 6, (2 * n + 1) / 3);
    assert_eq!((n * n - 1) / (n + 1), n - 1);
    assert_eq!(n / -2, -n / 2);
    assert_eq!(Size::from(-7) / 2, -4);
}

#[test]
fn what_has_no_number_says_so() {
    let n = Size::named("n");
    assert!((Size::from(Size::MAX) + 1).is_out_of_range());
    assert!((Size::from(usize::MAX)).is_out_of_range());
    assert!((n / 0).is_out_of_range() && (n * Size::MAX * 3).is_out_of_range());
    let long = (0..20).fold(n + 1, |size, _| size * (n + 1));
    assert!(long.is_out_of_range());
    assert!((Size::UNKNOWN + n / 0).is_unknown() && (3 * Size::UNKNOWN).is_unknown());
    let value = |_: &str| Some(1 << 40);
    assert_eq!((n * n).at(&value).unwrap_err(), "n*n is too large");
    assert_eq!(
        (n / (n - (1i64 << 40))).at(&value).unwrap_err(),
        "1099511627776/(n - 1099511627776) + 1 divides by zero"
    );
    assert_eq!(n.at(&|_| None).unwrap_err(), "n has no value: `n` has none");
}

fn named(name: &str, least: i64, most: Option<i64>, hint: i64) -> NamedSize {
    NamedSize { name: table::name(name), least, most, hint }
}

#[test]
fn bounds_and_guards_prove() {
    let [b, n, m] = ["b", "n", "m"].map(Size::named);
    let mut sizes = Sizes::default();
    sizes.declare(named("b", 1, Some(64), 32)).unwrap();
    sizes.declare(named("n", 0, None, 60)).unwrap();
    sizes.declare(named("m", 0, None, 60)).unwrap();
    assert!(sizes.proves(b.at_least(1)) && !sizes.proves(b.at_least(2)));
    assert!(sizes.proves((b * n + 3).at_least(3)) && sizes.proves(Size::from(64).at_least(b)));
    assert!(!sizes.proves((n - 1).at_least(0)) && !sizes.proves(n.equals(m)));
    assert!(sizes.proves((b * n).multiple_of(b)) && !sizes.proves((b * n).multiple_of(n)));
    assert!(sizes.proves((n / 2).at_least(0)) && sizes.proves(n.at_least(-n)));
    assert!(sizes.proves(n.at_least(n / 2)) && sizes.proves((n / 2 * 2 + 1).at_least(n)));
    assert!(!sizes.proves((n / 2 * 2).at_least(n)));
    let guard = |claim| SizeGuard { claim, op: "add".into(), source: String::new() };
    sizes.guard(guard(n.equals(m)));
    sizes.guard(guard(m.at_least(16)));
    sizes.guard(guard(n.multiple_of(4)));
    assert!(sizes.proves((n * b).equals(m * b)) && sizes.proves((m + 1).at_least(17)));
    assert!(sizes.proves(m.multiple_of(4)) && !sizes.proves(m.multiple_of(8)));
    sizes.guard(guard(m.equals(n)));
    assert_eq!(sizes.guards().len(), 3);
    let values = |b, n, m| Values::from_iter([("b", b), ("n", n), ("m", m)]);
    assert_eq!(sizes.check(&values(1, 20, 20)), Ok(()));
    assert_eq!(sizes.check(&values(65, 20, 20)).unwrap_err(), "`b` is 65, expected 1..=64");
    assert_eq!(
        sizes.check(&values(1, 20, 24)).unwrap_err(),
        "the program needs n == m of \"add\", found b = 1, n = 20, m = 24"
    );
}

#[test]
fn a_rule_leaves_guards_only_where_it_may() {
    let [n, m] = ["n", "m"].map(Size::named);
    let mut sizes = Sizes::default();
    sizes.declare(named("n", 0, None, 60)).unwrap();
    sizes.declare(named("m", 0, None, 60)).unwrap();
    assert!(!Must::proven(&sizes).equal(n, m) && Must::proven(&sizes).equal(n, n));
    let must = Must::guarded(&sizes);
    assert!(must.equal(n, m) && must.equal(n, n) && !must.equal(n, m + 1));
    assert!(!must.equal(3.into(), 4.into()) && must.hold(n.at_least(1)));
    assert_eq!(must.taken()[..], [n.equals(m), n.at_least(1)]);
}

#[test]
fn names_are_words_with_a_value_within_bounds() {
    let mut sizes = Sizes::default();
    for wrong in ["", "2n", "a b", "f32", "inf", "n+1"] {
        assert!(sizes.declare(named(wrong, 0, None, 1)).is_err(), "{wrong}");
    }
    assert!(sizes.declare(named("n", 1, Some(4), 5)).is_err());
    assert!(sizes.declare(named("n", -1, None, 5)).is_err());
    sizes.declare(named("x.0", 1, Some(4), 4)).unwrap();
    sizes.declare(named("x.0", 1, Some(4), 4)).unwrap();
    assert!(sizes.declare(named("x.0", 1, Some(4), 3)).unwrap_err().contains("already"));
    assert_eq!(sizes.names()[0].to_string(), "x.0 = 4 in 1..=4");
}
