//! The header parser.
