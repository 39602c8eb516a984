//! Nothing: everything is in the tests.
