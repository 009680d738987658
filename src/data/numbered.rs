//! Enums whose variants have numbers and names: in the C ABI, in words of atomics, in lines.

/// Declares an enum, all of its variants in order, and the name of each as it is written.
macro_rules! numbered {
    ($(#[$of_type:meta])* $visibility:vis enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident $(= $number:literal)?,)+
    }) => {
        $(#[$of_type])*
        $visibility enum $name {
            $($(#[$of_variant])* $variant $(= $number)?,)+
        }

        #[allow(dead_code, reason = "not every one is looked up by number, and not every one is printed")]
        impl $name {
            pub(crate) const ALL: &[$name] = &[$($name::$variant),+];

            fn with_number(number: u32) -> Option<$name> {
                $name::ALL.iter().copied().find(|variant| *variant as u32 == number)
            }

            const fn as_written(self) -> &'static str {
                match self {
                    $($name::$variant => stringify!($variant),)+
                }
            }
        }
    };
}

pub(crate) use numbered;
