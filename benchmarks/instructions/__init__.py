"""The instructions of the compiled gateway per request, counted by callgrind and compared with accepted counts."""
