//! [`modules!`]: modules that are a few settings and a function of one tensor.

/// Modules: the name, the settings in the order of `new`, those of `Default`, and the function of
/// the operand, the module and, if it takes one, the context.
macro_rules! modules {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),+ } $(or { $($absent:expr),+ })?
        = |$x:ident, $own:ident $(, $cx:ident)?| $function:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            $($field: $ty,)+
        }

        impl $name {
            /// With these settings.
            pub fn new($($field: $ty),+) -> Self {
                $name { $($field),+ }
            }
        }

        $(impl Default for $name {
            /// With PyTorch's settings.
            fn default() -> Self {
                $name::new($($absent),+)
            }
        })?

        impl $crate::nn::Module for $name {
            fn forward<'t>(&self, cx: &$crate::nn::Context<'t>, $x: Var<'t>) -> Var<'t> {
                let $own = self;
                $(let $cx = cx;)?
                cx.here(|| $function)
            }
        }
    )*};
}
pub(super) use modules;
