"""The writer's promises about time."""

from gateway.recorder import recorder, writer


def test_a_change_is_on_the_disk_within_a_second() -> None:
    in_the_file = writer.HOLD + writer._ROUND
    assert in_the_file + writer._SYNC_INTERVAL <= 1.0


def test_what_nobody_watches_is_read_back_before_its_row_is_written() -> None:
    assert recorder._PATIENCE <= writer.HOLD / 2
