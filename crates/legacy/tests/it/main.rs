//! Files of earlier systems from outside: what is read, what is imported, and what is written again.

mod nova;
mod nova_file;
mod rye;
