//! Options structs that are arguments: [`arguments!`](crate::arguments) is to calls what `options!` is to settings.

use datafusion::common::{Result, plan_err};

use super::{Argument, Value};

/// An argument, as errors, completion and the reference know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it takes: [`Argument::WHAT`].
    pub what: &'static str,
    /// What it means.
    pub about: &'static str,
    /// Whether a call has to give it.
    pub is_required: bool,
}

/// Values by the names of arguments, of one call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct Values {
    owner: String,
    values: Vec<(&'static str, Value)>,
}

impl Values {
    /// No values yet, for a call of `owner`.
    pub fn new(owner: impl Into<String>) -> Self {
        Self { owner: owner.into(), values: Vec::new() }
    }

    /// What is called.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The value of an argument, if it is given.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Gives an argument a value. The one that it had comes back.
    pub fn put(&mut self, name: &'static str, value: Value) -> Option<Value> {
        match self.values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => Some(std::mem::replace(old, value)),
            None => {
                self.values.push((name, value));
                None
            }
        }
    }

    /// All of them, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(name, value)| (*name, value))
    }

    /// What the value of an argument means, if it is given.
    ///
    /// # Errors
    ///
    /// Where the value is nothing of the type.
    pub fn read<T: Argument>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match T::from_value(value)? {
            Some(read) => Ok(Some(read)),
            None => plan_err!("argument '{name}' of {} must be {}, got {value}", self.owner, T::WHAT),
        }
    }
}

/// A struct of arguments.
pub trait Arguments: Sized {
    /// Its arguments, in the order in which a call without names gives them.
    fn parameters() -> Vec<Parameter>;

    /// What values mean.
    ///
    /// # Errors
    ///
    /// Where one is of the wrong type or missing.
    fn from_values(values: &Values) -> Result<Self>;

    /// The values that mean this; what is as if it were not said is left out.
    ///
    /// # Errors
    ///
    /// Where one has no form as a value.
    fn to_values(&self, values: &mut Values) -> Result<()>;
}

/// A field of such a struct: mostly one argument. An [`Argument`] has to be given, an `Option` of one may be. Structs
/// of arguments are fields too, and stand for all of theirs.
pub trait Field: Sized {
    /// The arguments of the field `name`, and others that come after those of all fields.
    fn parameters(name: &'static str, about: &'static str) -> (Vec<Parameter>, Vec<Parameter>);

    /// What values mean for it.
    ///
    /// # Errors
    ///
    /// Where they are nothing of its type, or missing.
    fn read(name: &'static str, values: &Values) -> Result<Self>;

    /// The values that mean this.
    ///
    /// # Errors
    ///
    /// Where it has no form as a value.
    fn write(&self, name: &'static str, values: &mut Values) -> Result<()>;
}

impl<T: Argument> Field for T {
    fn parameters(name: &'static str, about: &'static str) -> (Vec<Parameter>, Vec<Parameter>) {
        (vec![Parameter { name, what: T::WHAT, about, is_required: true }], Vec::new())
    }

    fn read(name: &'static str, values: &Values) -> Result<Self> {
        match values.read(name)? {
            Some(value) => Ok(value),
            None => plan_err!("{} needs the argument '{name}'", values.owner()),
        }
    }

    fn write(&self, name: &'static str, values: &mut Values) -> Result<()> {
        values.put(name, self.to_value()?);
        Ok(())
    }
}

impl<T: Argument> Field for Option<T> {
    fn parameters(name: &'static str, about: &'static str) -> (Vec<Parameter>, Vec<Parameter>) {
        (vec![Parameter { name, what: T::WHAT, about, is_required: false }], Vec::new())
    }

    fn read(name: &'static str, values: &Values) -> Result<Self> {
        values.read(name)
    }

    fn write(&self, name: &'static str, values: &mut Values) -> Result<()> {
        match self {
            Some(value) => value.write(name, values),
            None => Ok(()),
        }
    }
}

/// A call may leave the field out, which then has its default.
#[doc(hidden)]
#[derive(Debug)]
pub struct OrDefault<T>(pub T);

impl<T: Argument + Default + PartialEq> OrDefault<T> {
    #[doc(hidden)]
    pub fn parameters(name: &'static str, about: &'static str) -> (Vec<Parameter>, Vec<Parameter>) {
        Option::<T>::parameters(name, about)
    }

    #[doc(hidden)]
    pub fn read(name: &'static str, values: &Values) -> Result<T> {
        Ok(values.read(name)?.unwrap_or_default())
    }

    #[doc(hidden)]
    pub fn write(value: &T, name: &'static str, values: &mut Values) -> Result<()> {
        if *value == T::default() { Ok(()) } else { value.write(name, values) }
    }
}

/// The same for a flag that is set unless a call says otherwise.
#[doc(hidden)]
#[derive(Debug)]
pub struct OrTrue;

impl OrTrue {
    #[doc(hidden)]
    pub fn read(name: &'static str, values: &Values) -> Result<bool> {
        Ok(values.read(name)?.unwrap_or(true))
    }

    #[doc(hidden)]
    pub fn write(value: bool, name: &'static str, values: &mut Values) -> Result<()> {
        if value { Ok(()) } else { value.write(name, values) }
    }
}

/// The arguments of all fields: first those of the fields, then those that come after.
#[doc(hidden)]
pub fn concat_parameters(fields: Vec<(Vec<Parameter>, Vec<Parameter>)>) -> (Vec<Parameter>, Vec<Parameter>) {
    let (own, others): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    (own.concat(), others.concat())
}

/// No arguments.
impl Arguments for () {
    fn parameters() -> Vec<Parameter> {
        Vec::new()
    }

    fn from_values(_values: &Values) -> Result<Self> {
        Ok(())
    }

    fn to_values(&self, _values: &mut Values) -> Result<()> {
        Ok(())
    }
}

/// Makes a struct whose fields are arguments of a call.
///
/// A field of an [`Argument`] has to be given, an `Option` of one may be left out, as may one
/// that ends in `= default`, or a flag that ends in `= true`. Fields `beside` them are for Rust only.
///
/// ```
/// blockyard::arguments! {
///     /// Which squares.
///     #[derive(Debug, Clone, Default)]
///     pub struct Squares {
///         /// How many.
///         pub n: u64,
///         /// Whether the largest comes first.
///         pub descending: bool = default,
///         /// The first of them; 0 if not said.
///         pub from: Option<u64>,
///     }
/// }
///
/// use blockyard::call::{Arguments, Value, Values};
/// let mut values = Values::new("squares");
/// values.put("n", Value::Number("3".to_owned()));
/// assert_eq!(Squares::from_values(&values).unwrap().n, 3);
/// assert!(Squares::from_values(&Values::new("squares")).unwrap_err().to_string().contains("needs the argument 'n'"));
/// ```
#[macro_export]
macro_rules! arguments {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $( $(#[doc = $doc:literal])* $field_vis:vis $field:ident : $type:ty $(= $default:ident)? ),* $(,)?
        }
        $( beside {
            $( $(#[doc = $beside_doc:literal])* $beside_vis:vis $beside:ident : $beside_type:ty ),* $(,)?
        } )?
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $( $(#[doc = $doc])* $field_vis $field: $type, )*
            $($( $(#[doc = $beside_doc])* $beside_vis $beside: $beside_type, )*)?
        }

        impl $crate::call::Arguments for $name {
            fn parameters() -> Vec<$crate::call::Parameter> {
                let (own, others) = <Self as $crate::call::Field>::parameters("", "");
                [own, others].concat()
            }

            fn from_values(values: &$crate::call::Values) -> $crate::call::Result<Self> {
                Ok(Self {
                    $( $field: $crate::arguments!(@read values, $field, $type $(, $default)?), )*
                    $($( $beside: Default::default(), )*)?
                })
            }

            fn to_values(&self, values: &mut $crate::call::Values) -> $crate::call::Result<()> {
                $( $crate::arguments!(@write self, values, $field, $type $(, $default)?); )*
                Ok(())
            }
        }

        impl $crate::call::Field for $name {
            fn parameters(
                _: &'static str,
                _: &'static str,
            ) -> (Vec<$crate::call::Parameter>, Vec<$crate::call::Parameter>) {
                $crate::call::concat_parameters(vec![$({
                    let about = concat!($( $doc ),*).trim_ascii();
                    $crate::arguments!(@parameters about, $field, $type $(, $default)?)
                }),*])
            }

            fn read(_: &'static str, values: &$crate::call::Values) -> $crate::call::Result<Self> {
                $crate::call::Arguments::from_values(values)
            }

            fn write(&self, _: &'static str, values: &mut $crate::call::Values) -> $crate::call::Result<()> {
                $crate::call::Arguments::to_values(self, values)
            }
        }
    };
    (@parameters $about:ident, $field:ident, $type:ty) => {
        <$type as $crate::call::Field>::parameters(stringify!($field), $about)
    };
    (@parameters $about:ident, $field:ident, $type:ty, default) => {
        $crate::call::OrDefault::<$type>::parameters(stringify!($field), $about)
    };
    (@parameters $about:ident, $field:ident, $type:ty, true) => {
        $crate::call::OrDefault::<$type>::parameters(stringify!($field), $about)
    };
    (@read $values:ident, $field:ident, $type:ty) => {
        <$type as $crate::call::Field>::read(stringify!($field), $values)?
    };
    (@read $values:ident, $field:ident, $type:ty, default) => {
        $crate::call::OrDefault::<$type>::read(stringify!($field), $values)?
    };
    (@read $values:ident, $field:ident, $type:ty, true) => {
        $crate::call::OrTrue::read(stringify!($field), $values)?
    };
    (@write $self:ident, $values:ident, $field:ident, $type:ty) => {
        $crate::call::Field::write(&$self.$field, stringify!($field), $values)?
    };
    (@write $self:ident, $values:ident, $field:ident, $type:ty, default) => {
        $crate::call::OrDefault::<$type>::write(&$self.$field, stringify!($field), $values)?
    };
    (@write $self:ident, $values:ident, $field:ident, $type:ty, true) => {
        $crate::call::OrTrue::write($self.$field, stringify!($field), $values)?
    };
}
