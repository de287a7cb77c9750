//! [`setters!`]: methods of a builder that set one field each and return the builder.

/// Methods that take a builder by value, set one of its fields and return it.
///
/// `eps(eps: f64) => settings.eps = eps;` is `pub fn eps(mut self, eps: f64) -> Self`, which
/// assigns `self.settings.eps`. The documentation of a method stands above it.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) => $($field:tt).+ = $value:expr;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self $(, $arg: $ty)*) -> Self {
            self.$($field).+ = $value;
            self
        }
    )*};
}
pub(crate) use setters;
