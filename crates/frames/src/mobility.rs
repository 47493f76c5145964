/// Whether what will live in a block can be moved elsewhere, as in Linux' migrate types.
///
/// Blocks of one kind are kept together in pageblocks of 2 MiB, so that memory that stays where it is for long (page
/// tables, kernel objects) spoils few huge pages. It is a hint: when one kind has run out, it takes over what is free
/// of the other's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mobility {
    /// A user's page: the mapping can be changed to a copy elsewhere.
    #[default]
    Movable = 0,
    /// Something that is pointed to by its address.
    Unmovable = 1,
}

impl Mobility {
    pub(crate) const COUNT: usize = 2;

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Movable => Self::Unmovable,
            Self::Unmovable => Self::Movable,
        }
    }
}
