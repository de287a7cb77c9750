//! Paddings: elements around the last axes.

use crate::nn::{Context, Module};
use tracecast_ir::Var;
use tracecast_ir::functions::PadMode;

/// Paddings: the name, how many axes they surround, and what stands there; the arguments of `new`
/// beside the sizes.
macro_rules! paddings {
    ($($(#[$doc:meta])* $name:ident over $axes:literal $(with $value:ident)? = $mode:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            sizes: [i64; 2 * $axes],
            $($value: f64,)?
        }

        impl $name {
            /// With this many positions before and behind the last axis, then those of the one
            /// before it, and so on: as PyTorch's `padding`. Negative ones cut.
            pub fn new(sizes: [i64; 2 * $axes] $(, $value: f64)?) -> Self {
                $name { sizes $(, $value)? }
            }
        }

        impl Module for $name {
            fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
                $(let $value = self.$value;)?
                padded(cx, stringify!($name), x, &self.sizes, $mode)
            }
        }
    )*};
}

paddings! {
    /// A number around the last axis:
    /// [`torch.nn.ConstantPad1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ConstantPad1d.html).
    ConstantPad1d over 1 with value = PadMode::Constant(value);
    /// A number around the last two axes:
    /// [`torch.nn.ConstantPad2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ConstantPad2d.html).
    ConstantPad2d over 2 with value = PadMode::Constant(value);
    /// A number around the last three axes:
    /// [`torch.nn.ConstantPad3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ConstantPad3d.html).
    ConstantPad3d over 3 with value = PadMode::Constant(value);
    /// Zeros around the last axis:
    /// [`torch.nn.ZeroPad1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ZeroPad1d.html).
    ZeroPad1d over 1 = PadMode::Constant(0.0);
    /// Zeros around the last two axes:
    /// [`torch.nn.ZeroPad2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ZeroPad2d.html).
    ///
    /// ```
    /// use tracecast::nn::{Sequential, ZeroPad2d};
    /// // One column on the left, two on the right, none above, three below.
    /// let model = Sequential::new().then(ZeroPad2d::new([1, 2, 0, 3]));
    /// ```
    ZeroPad2d over 2 = PadMode::Constant(0.0);
    /// Zeros around the last three axes:
    /// [`torch.nn.ZeroPad3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ZeroPad3d.html).
    ZeroPad3d over 3 = PadMode::Constant(0.0);
    /// The last axis mirrored at its ends, which are not repeated:
    /// [`torch.nn.ReflectionPad1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReflectionPad1d.html).
    ReflectionPad1d over 1 = PadMode::Reflect;
    /// The last two axes mirrored at their ends, which are not repeated:
    /// [`torch.nn.ReflectionPad2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReflectionPad2d.html).
    ReflectionPad2d over 2 = PadMode::Reflect;
    /// The last three axes mirrored at their ends, which are not repeated:
    /// [`torch.nn.ReflectionPad3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReflectionPad3d.html).
    ReflectionPad3d over 3 = PadMode::Reflect;
    /// The ends of the last axis repeated:
    /// [`torch.nn.ReplicationPad1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReplicationPad1d.html).
    ReplicationPad1d over 1 = PadMode::Replicate;
    /// The ends of the last two axes repeated:
    /// [`torch.nn.ReplicationPad2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReplicationPad2d.html).
    ReplicationPad2d over 2 = PadMode::Replicate;
    /// The ends of the last three axes repeated:
    /// [`torch.nn.ReplicationPad3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReplicationPad3d.html).
    ReplicationPad3d over 3 = PadMode::Replicate;
    /// The last axis as a ring:
    /// [`torch.nn.CircularPad1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CircularPad1d.html).
    CircularPad1d over 1 = PadMode::Circular;
    /// The last two axes as rings:
    /// [`torch.nn.CircularPad2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CircularPad2d.html).
    CircularPad2d over 2 = PadMode::Circular;
    /// The last three axes as rings:
    /// [`torch.nn.CircularPad3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CircularPad3d.html).
    CircularPad3d over 3 = PadMode::Circular;
}

/// What is no number takes channels in front of the axes, with or without a batch, as in PyTorch.
fn padded<'t>(cx: &Context<'t>, name: &str, x: Var<'t>, sizes: &[i64], mode: PadMode) -> Var<'t> {
    let axes = sizes.len() / 2;
    let fits = || (axes + 1..=axes + 2).contains(&x.rank());
    cx.here(|| {
        if !matches!(mode, PadMode::Constant(_)) && !x.is_poison() && !fits() {
            let why = format!("takes {} or {} axes, found {}", axes + 1, axes + 2, x.ty());
            return cx.trace().tracer().fail(name, why);
        }
        x.pad_last(sizes, mode)
    })
}
