//! (map)
