//! Loss curves as a self-contained SVG picture.
//!
//! Each series is drawn over its step number. A long series is noise with a trend in it, so it is
//! drawn twice: faintly as it is, and strongly as a running mean. The loss axis is logarithmic
//! where the losses span more than a factor of ten. Losses that are not finite leave a gap, and the
//! legend counts them.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;

/// Series longer than this get a running mean.
const LONG: usize = 200;

/// Colours that differ for colour-blind readers too (Okabe and Ito 2008), each with a dash pattern
/// of its own, because the curves of different precisions often lie on top of each other.
const STYLES: [(&str, &str); 6] = [
    ("#0072b2", "none"),
    ("#d55e00", "9 5"),
    ("#009e73", "3 4"),
    ("#cc79a7", "12 4 3 4"),
    ("#e69f00", "6 2"),
    ("#56b4e9", "2 2"),
];

/// Draws one curve per named series; step 1 is the first loss of each.
///
/// Anything can be drawn: without a single finite loss the picture has axes and a legend only.
pub(crate) fn loss_curves(series: &[(&str, &[f64])]) -> String {
    let steps = Axis::steps(series.iter().map(|(_, losses)| losses.len()).max().unwrap_or(0));
    let losses = Axis::losses(series.iter().flat_map(|(_, losses)| losses.iter().copied()));
    let mut svg = String::new();
    draw(&mut svg, &steps, &losses, series).expect("writing to a string cannot fail");
    svg
}

fn draw(
    svg: &mut String,
    steps: &Axis,
    losses: &Axis,
    series: &[(&str, &[f64])],
) -> std::fmt::Result {
    writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13" fill="#222222">
<title>Training loss</title>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##
    )?;
    draw_axes(svg, steps, losses)?;
    for (index, (_, values)) in series.iter().enumerate() {
        let (colour, dash) = STYLES[index % STYLES.len()];
        let mut curve = |values: &[f64], style: &str| {
            let path = path(values, steps, losses);
            if path.is_empty() {
                return Ok(());
            }
            writeln!(
                svg,
                r#"<path d="{path}" fill="none" stroke="{colour}" {style} stroke-linejoin="round"/>"#
            )
        };
        let strong =
            format!(r#"stroke-width="2" stroke-dasharray="{dash}" stroke-linecap="round""#);
        if values.len() > LONG {
            curve(values, r#"stroke-width="1" stroke-opacity="0.18""#)?;
            curve(&running_mean(values, values.len() / 50), &strong)?;
        } else {
            curve(values, &strong)?;
        }
    }
    draw_legend(svg, series)?;
    writeln!(svg, "</svg>")
}

fn draw_axes(svg: &mut String, steps: &Axis, losses: &Axis) -> std::fmt::Result {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in losses.ticks() {
        let y = losses.place(tick, bottom, TOP);
        writeln!(
            svg,
            r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#e4e4e4"/>"##
        )?;
        let (x, label) = (LEFT - 9.0, label(tick));
        writeln!(svg, r#"<text x="{x}" y="{:.1}" text-anchor="end">{label}</text>"#, y + 4.5)?;
    }
    for tick in steps.ticks().into_iter().filter(|tick| tick.fract() == 0.0) {
        let x = steps.place(tick, LEFT, right);
        writeln!(
            svg,
            r##"<line x1="{x:.1}" y1="{bottom}" x2="{x:.1}" y2="{}" stroke="#222222"/>"##,
            bottom + 5.0
        )?;
        let (y, label) = (bottom + 20.0, label(tick));
        writeln!(svg, r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{label}</text>"#)?;
    }
    writeln!(svg, r##"<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#222222"/>"##)?;
    let (middle, caption) = (f64::midpoint(LEFT, right), HEIGHT - 14.0);
    writeln!(svg, r#"<text x="{middle}" y="{caption}" text-anchor="middle">step</text>"#)?;
    let scale = if losses.logarithmic { "loss (logarithmic)" } else { "loss" };
    let middle = f64::midpoint(TOP, bottom);
    writeln!(
        svg,
        r#"<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">{scale}</text>"#
    )
}

/// One row above the curves; a name takes the room its letters need, roughly.
fn draw_legend(svg: &mut String, series: &[(&str, &[f64])]) -> std::fmt::Result {
    let mut x = LEFT;
    for (index, (name, values)) in series.iter().enumerate() {
        let (colour, dash) = STYLES[index % STYLES.len()];
        let lost = values.iter().filter(|value| !value.is_finite()).count();
        let name =
            if lost == 0 { (*name).to_owned() } else { format!("{name} ({lost} not finite)") };
        let (end, text) = (x + 34.0, x + 42.0);
        writeln!(
            svg,
            r#"<line x1="{x}" y1="28" x2="{end}" y2="28" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" stroke-linecap="round"/>
<text x="{text}" y="32.5">{}</text>"#,
            escape(&name)
        )?;
        x = text + 8.0 * name.chars().count() as f64 + 24.0;
    }
    Ok(())
}

/// A range of numbers and how it is spread over a length.
struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Axis {
    fn steps(count: usize) -> Self {
        Self { from: 1.0, to: count.max(2) as f64, logarithmic: false }
    }

    fn losses(values: impl Iterator<Item = f64>) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let range = finite.fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        });
        let (low, high) = range.unwrap_or((0.0, 1.0));
        if low > 0.0 && high / low > 10.0 {
            // The exponent is held above the subnormal numbers, so that both ends stay positive.
            let decade = 10_f64.powf(low.log10().floor().max(-300.0));
            let from = [5.0, 2.0].map(|digit| digit * decade).into_iter().find(|from| *from <= low);
            return Self { from: from.unwrap_or(decade), to: high, logarithmic: true };
        }
        // Halves, because the difference of two finite numbers may not be finite.
        let margin = (high / 2.0 - low / 2.0) / 10.0;
        let margin = if margin > 0.0 { margin } else { (low.abs() / 10.0).max(0.5) };
        let from = if low >= 0.0 { (low - margin).max(0.0) } else { (low - margin).max(f64::MIN) };
        Self { from, to: (high + margin).min(f64::MAX), logarithmic: false }
    }

    /// Where `value` lies between the positions `start` and `end`.
    fn place(&self, value: f64, start: f64, end: f64) -> f64 {
        let share = if self.logarithmic {
            (value.ln() - self.from.ln()) / (self.to.ln() - self.from.ln())
        } else {
            (value / 2.0 - self.from / 2.0) / (self.to / 2.0 - self.from / 2.0)
        };
        start + share.clamp(0.0, 1.0) * (end - start)
    }

    /// Round numbers within the range, about seven of them.
    fn ticks(&self) -> Vec<f64> {
        let inside = |tick: &f64| (self.from..=self.to).contains(tick);
        if self.logarithmic {
            let (first, last) = (self.from.log10().floor() as i32, self.to.log10().floor() as i32);
            let decades = last - first + 1;
            let digits: &[f64] = if decades > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let every = (decades / 8 + 1) as usize;
            let exponents = (first..=last).step_by(every);
            let ticks = exponents
                .flat_map(|exponent| digits.iter().map(move |d| d * 10_f64.powi(exponent)));
            return ticks.filter(inside).collect();
        }
        let rough = (self.to / 8.0 - self.from / 8.0).max(f64::MIN_POSITIVE);
        let decade = 10_f64.powf(rough.log10().floor());
        let gap = [1.0, 2.0, 5.0]
            .into_iter()
            .map(|d| d * decade)
            .find(|gap| *gap >= rough)
            .unwrap_or(10.0 * decade);
        let first = (self.from / gap).ceil();
        (0..12).map(|index| (first + f64::from(index)) * gap).filter(inside).collect()
    }
}

/// The curve as path data, without the gaps, and with at most four points for each horizontal
/// pixel.
fn path(values: &[f64], steps: &Axis, losses: &Axis) -> String {
    let mut path = String::new();
    let mut drawing = false;
    for (index, value) in thinned(values) {
        if value.is_finite() {
            let x = steps.place(index as f64 + 1.0, LEFT, WIDTH - RIGHT);
            let y = losses.place(value, HEIGHT - BOTTOM, TOP);
            // A point on its own is drawn as a line of no length, which round caps turn into a dot.
            let command = if drawing { "L" } else { &format!("M{x:.1} {y:.1}L") };
            write!(path, "{command}{x:.1} {y:.1}").expect("writing to a string cannot fail");
        }
        drawing = value.is_finite();
    }
    path
}

/// All points of a short series; of a long one the lowest and highest of each small run, so that
/// peaks survive. A run with a value that is not finite keeps one such value.
fn thinned(values: &[f64]) -> Vec<(usize, f64)> {
    let run = values.len().div_ceil((2.0 * WIDTH) as usize).max(1);
    let mut points = Vec::new();
    for (number, chunk) in values.chunks(run).enumerate() {
        let indexed =
            || chunk.iter().enumerate().map(|(offset, &value)| (number * run + offset, value));
        let finite = || indexed().filter(|(_, value)| value.is_finite());
        let lowest = finite().min_by(|left, right| left.1.total_cmp(&right.1));
        let highest = finite().max_by(|left, right| left.1.total_cmp(&right.1));
        let lost = indexed().find(|(_, value)| !value.is_finite());
        let mut kept: Vec<(usize, f64)> = [lowest, highest, lost].into_iter().flatten().collect();
        kept.sort_unstable_by_key(|(index, _)| *index);
        kept.dedup_by_key(|(index, _)| *index);
        points.extend(kept);
    }
    points
}

/// The mean of the finite values at most `reach` places away; what is not finite stays so.
fn running_mean(values: &[f64], reach: usize) -> Vec<f64> {
    let mean_around = |index: usize| {
        let near = &values[index.saturating_sub(reach)..values.len().min(index + reach + 1)];
        let (mut sum, mut count) = (0.0, 0.0);
        for value in near.iter().filter(|value| value.is_finite()) {
            sum += value;
            count += 1.0;
        }
        sum / count
    };
    (0..values.len())
        .map(|index| if values[index].is_finite() { mean_around(index) } else { f64::NAN })
        .collect()
}

/// A number in as few characters as show it: `1500`, `0.02`, `1e-7`.
fn label(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        return format!("{:e}", rounded(value));
    }
    format!("{}", rounded(value))
}

/// To six significant digits: ticks are products, and 0.30000000000000004 is no label.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Text that is safe between the tags; what XML forbids altogether becomes a replacement character.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The points of every curve, subpath by subpath.
    fn curves(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let paths = svg
            .lines()
            .filter(|line| line.starts_with("<path") && line.contains("stroke-linejoin"));
        let subpaths = paths.flat_map(|line| line.split('"').nth(1).unwrap().split('M').skip(1));
        let point = |point: &str| {
            let (x, y) = point.split_once(' ').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        subpaths.map(|subpath| subpath.split('L').map(point).collect()).collect()
    }

    fn well_formed(svg: &str) {
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let inside = |&(x, y): &(f64, f64)| {
            (LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y)
        };
        assert!(curves(svg).iter().flatten().all(inside), "{svg}");
    }

    #[test]
    fn a_falling_loss_falls() {
        let svg = loss_curves(&[("f32", &[2.0, 1.5, 1.2]), ("bf16", &[2.1, 1.6, 1.3])]);
        well_formed(&svg);
        let curves = curves(&svg);
        assert_eq!(curves.len(), 2);
        let first = &curves[0];
        assert_eq!((first[0].0, first.last().unwrap().0), (LEFT, WIDTH - RIGHT));
        assert!(first.windows(2).all(|pair| pair[0].1 <= pair[1].1), "down is a larger y");
        assert!(
            svg.contains(">f32<")
                && svg.contains(">bf16<")
                && svg.contains(">loss<")
                && svg.contains(">step<")
        );
    }

    #[test]
    fn wide_ranges_are_logarithmic() {
        let svg = loss_curves(&[("f32", &[2.3, 0.5, 0.02])]);
        well_formed(&svg);
        assert!(svg.contains("loss (logarithmic)"));
        for tick in ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"] {
            assert!(svg.contains(&format!(">{tick}</text>")), "no tick {tick}");
        }
        assert!(
            !loss_curves(&[("f32", &[2.3, 0.5, 0.0])]).contains("logarithmic"),
            "zero has no logarithm"
        );
    }

    #[test]
    fn what_is_not_finite_is_a_gap_and_is_counted() {
        let svg = loss_curves(&[(
            "f16",
            &[2.0, f64::INFINITY, 1.8, 1.7, f64::NAN, f64::NEG_INFINITY, 1.5],
        )]);
        well_formed(&svg);
        assert_eq!(curves(&svg).iter().map(Vec::len).collect::<Vec<_>>(), [2, 3, 2]);
        assert!(svg.contains("f16 (3 not finite)"));
    }

    #[test]
    fn anything_can_be_drawn() {
        let cases: [&[(&str, &[f64])]; 10] = [
            &[],
            &[("empty", &[])],
            &[("empty", &[]), ("one", &[1.0])],
            &[("lost", &[f64::NAN, f64::INFINITY])],
            &[("flat", &[0.7; 30])],
            &[("zero", &[0.0; 3])],
            &[("below", &[-1.0, -50.0, 3.0])],
            &[("extreme", &[f64::MAX, f64::MIN])],
            &[("tiny", &[5e-324, 1e300, f64::MIN_POSITIVE])],
            &[("large", &[f64::MAX; 2])],
        ];
        for series in cases {
            well_formed(&loss_curves(series));
        }
    }

    #[test]
    fn long_series_are_thinned_and_smoothed() {
        let mut losses: Vec<f64> =
            (0..100_000).map(|step| 1.0 + f64::from(step % 7) / 100.0).collect();
        losses[50_000] = 1.9;
        let svg = loss_curves(&[("long", &losses)]);
        well_formed(&svg);
        assert!(svg.len() < 200_000, "{} bytes", svg.len());
        let [raw, mean] = &curves(&svg)[..] else { panic!("expected two curves") };
        let top =
            |curve: &[(f64, f64)]| curve.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        assert!(top(raw) + 100.0 < top(mean), "the peak survives in the curve and not in its mean");
    }

    #[test]
    fn the_running_mean_skips_gaps() {
        let mean = running_mean(&[1.0, f64::NAN, 3.0, 5.0], 1);
        assert_eq!((mean[0], mean[2], mean[3]), (1.0, 4.0, 4.0));
        assert!(mean[1].is_nan());
    }

    #[test]
    fn names_are_escaped() {
        let svg = loss_curves(&[("<a & \"b\">\u{1}", &[1.0])]);
        assert!(svg.contains("&lt;a &amp; &quot;b&quot;&gt;\u{fffd}"));
    }

    #[test]
    fn labels_are_short() {
        let cases = [
            (0.1 + 0.2, "0.3"),
            (1500.0, "1500"),
            (0.0, "0"),
            (1e-7, "1e-7"),
            (2e6, "2e6"),
            (-0.5, "-0.5"),
        ];
        for (value, expected) in cases {
            assert_eq!(label(value), expected);
        }
    }
}
