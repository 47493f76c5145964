/// A value with two cache lines of its own, as CPUs fetch lines in pairs: what one CPU writes does not slow down another
/// that uses the neighbour.
#[repr(align(128))]
pub struct Padded<T>(pub T);
