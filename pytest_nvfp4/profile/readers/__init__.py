"""Readers of saved reports of anybody: bounded, and with nothing made up for what a report does not say."""
